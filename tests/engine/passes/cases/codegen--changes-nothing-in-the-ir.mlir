module @m attributes {module.coeff_addr = 4294967296 : i64, module.coeff_size = 0 : i64, module.io_addr = 4294967296 : i64, module.io_size = 8192 : i64, module.neuron_addr = 4294975488 : i64, module.neuron_size = 0 : i64} {
  func.func @main(%arg0: tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294971392 : i64> {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294967296 : i64> loc("input_states")
    %1 = "tpu.Add"(%0, %0) : (tensor<1x1x64xbf16, 4294967296 : i64>, tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294971392 : i64> loc("a")
    return %1 : tensor<1x1x64xbf16, 4294971392 : i64>
  }
}
// after
module @m attributes {module.coeff_addr = 4294967296 : i64, module.coeff_size = 0 : i64, module.io_addr = 4294967296 : i64, module.io_size = 8192 : i64, module.neuron_addr = 4294975488 : i64, module.neuron_size = 0 : i64} {
  func.func @main(%arg0: tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294971392 : i64> {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294967296 : i64>
    %1 = "tpu.Add"(%0, %0) : (tensor<1x1x64xbf16, 4294967296 : i64>, tensor<1x1x64xbf16, 4294967296 : i64>) -> tensor<1x1x64xbf16, 4294971392 : i64>
    return %1 : tensor<1x1x64xbf16, 4294971392 : i64>
  }
}
