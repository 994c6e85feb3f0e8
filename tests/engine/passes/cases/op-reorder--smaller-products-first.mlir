module @m {
  func.func @main(%arg0: tensor<1x4x64xbf16>) -> (tensor<1x4x64xbf16>, tensor<1x4x32xbf16>, tensor<1x4x16xbf16>) {
    %none = "top.None"() : () -> none loc("none")
    %0 = "top.Input"(%arg0) : (tensor<1x4x64xbf16>) -> tensor<1x4x64xbf16> loc("input_states")
    %1 = "top.Weight"() {tensors = ["q"], transforms = []} : () -> tensor<64x64xbf16> loc("q")
    %2 = "top.Weight"() {tensors = ["k"], transforms = []} : () -> tensor<64x32xbf16> loc("k")
    %3 = "top.Weight"() {tensors = ["o"], transforms = []} : () -> tensor<64x16xbf16> loc("o")
    %4 = "tpu.MatMul"(%0, %1, %none) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x64xbf16>, none) -> tensor<1x4x64xbf16> loc("q")
    %5 = "tpu.MatMul"(%0, %2, %none) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x4x32xbf16> loc("k")
    %6 = "tpu.MatMul"(%4, %3, %none) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x16xbf16>, none) -> tensor<1x4x16xbf16> loc("o")
    return %4, %5, %6 : tensor<1x4x64xbf16>, tensor<1x4x32xbf16>, tensor<1x4x16xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x4x64xbf16>) -> (tensor<1x4x64xbf16>, tensor<1x4x32xbf16>, tensor<1x4x16xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x4x64xbf16>) -> tensor<1x4x64xbf16>
    %2 = "top.Weight"() {tensors = ["q"], transforms = []} : () -> tensor<64x64xbf16>
    %3 = "top.Weight"() {tensors = ["k"], transforms = []} : () -> tensor<64x32xbf16>
    %4 = "top.Weight"() {tensors = ["o"], transforms = []} : () -> tensor<64x16xbf16>
    %5 = "tpu.MatMul"(%1, %3, %0) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x4x32xbf16>
    %6 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x64xbf16>, none) -> tensor<1x4x64xbf16>
    %7 = "tpu.MatMul"(%6, %4, %0) {right_transpose = false} : (tensor<1x4x64xbf16>, tensor<64x16xbf16>, none) -> tensor<1x4x16xbf16>
    return %6, %5, %7 : tensor<1x4x64xbf16>, tensor<1x4x32xbf16>, tensor<1x4x16xbf16>
  }
}
