module @m {
  func.func @main(%arg0: tensor<1x4xf32>) -> tensor<1x4xf32> {
    %0 = "top.Input"(%arg0) : (tensor<1x4xf32>) -> tensor<1x4xf32> loc("x")
    return %0 : tensor<1x4xf32>
  }
}
// after
module @m attributes {module.addr_mode = "io_alone", module.chip = "bm1684x", module.cores = 1 : i64, module.mode = "W4BF16", module.q_group_size = 64 : i64, module.q_symmetric = false, module.state = "TOP_F32"} {
  func.func @main(%arg0: tensor<1x4xf32>) -> tensor<1x4xf32> {
    %0 = "top.Input"(%arg0) : (tensor<1x4xf32>) -> tensor<1x4xf32>
    return %0 : tensor<1x4xf32>
  }
}
