module @m {
  func.func @main(%arg0: tensor<1x8x2x16xbf16>, %arg1: tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16> {
    %0 = "top.Input"(%arg0) : (tensor<1x8x2x16xbf16>) -> tensor<1x8x2x16xbf16> loc("history_k")
    %1 = "top.Input"(%arg1) : (tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16> loc("input_states")
    %2 = "tpu.Add"(%1, %1) : (tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16> loc("k")
    %3 = "tpu.Concat"(%0, %2) {axis = 1 : i64} : (tensor<1x8x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x9x2x16xbf16> loc("keys")
    return %2 : tensor<1x1x2x16xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x8x2x16xbf16>, %arg1: tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16> {
    %0 = "top.Input"(%arg0) : (tensor<1x8x2x16xbf16>) -> tensor<1x8x2x16xbf16>
    %1 = "top.Input"(%arg1) : (tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16>
    %2 = "tpu.Add"(%1, %1) : (tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16>
    %3 = "tpu.Concat"(%0, %2) {axis = 1 : i64, only_merge = true} : (tensor<1x8x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x9x2x16xbf16>
    return %2 : tensor<1x1x2x16xbf16>
  }
}
