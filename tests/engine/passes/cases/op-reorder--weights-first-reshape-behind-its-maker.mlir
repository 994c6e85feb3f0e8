module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>) -> (tensor<1x1x4x16xbf16>, tensor<1x1x64xbf16>) {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %1 = "tpu.Add"(%0, %0) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("a")
    %2 = "top.Weight"() {tensors = ["w"], transforms = []} : () -> tensor<1x1x64xbf16> loc("w")
    %3 = "tpu.Mul"(%0, %2) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("b")
    %4 = "tpu.Reshape"(%1) : (tensor<1x1x64xbf16>) -> tensor<1x1x4x16xbf16> loc("r")
    return %4, %3 : tensor<1x1x4x16xbf16>, tensor<1x1x64xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>) -> (tensor<1x1x4x16xbf16>, tensor<1x1x64xbf16>) {
    %0 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %1 = "top.Weight"() {tensors = ["w"], transforms = []} : () -> tensor<1x1x64xbf16>
    %2 = "tpu.Add"(%0, %0) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %3 = "tpu.Reshape"(%2) : (tensor<1x1x64xbf16>) -> tensor<1x1x4x16xbf16>
    %4 = "tpu.Mul"(%0, %1) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    return %3, %4 : tensor<1x1x4x16xbf16>, tensor<1x1x64xbf16>
  }
}
