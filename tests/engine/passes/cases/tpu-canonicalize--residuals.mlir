module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x3x64xbf16>) -> (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x3x32xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["cast(bf16)"]} : () -> tensor<64x32xbf16> loc("w")
    %3 = "top.Weight"() {tensors = ["b"], transforms = ["cast(bf16)"]} : () -> tensor<32xbf16> loc("b")
    %4 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("twice read")
    %5 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("left")
    %6 = "tpu.Mul"(%4, %4) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc("made behind the product")
    %7 = "tpu.Add"(%5, %6) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc("sum of left")
    %8 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("right")
    %9 = "tpu.Add"(%7, %8) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc("sum of right")
    %10 = "tpu.MatMul"(%1, %2, %3) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, tensor<32xbf16>) -> tensor<1x1x32xbf16> loc("biased")
    %11 = "tpu.Add"(%10, %4) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc("sum of biased")
    %12 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc("doubled")
    %13 = "tpu.Add"(%12, %12) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc("sum of doubled")
    %14 = "tpu.MatMul"(%arg1, %2, %0) {right_transpose = false} : (tensor<1x3x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x3x32xbf16> loc("rows")
    %15 = "tpu.Mul"(%14, %14) : (tensor<1x3x32xbf16>, tensor<1x3x32xbf16>) -> tensor<1x3x32xbf16> loc("square")
    %16 = "tpu.MatMul"(%arg1, %2, %0) {right_transpose = false} : (tensor<1x3x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x3x32xbf16> loc("other rows")
    %17 = "tpu.Add"(%15, %16) : (tensor<1x3x32xbf16>, tensor<1x3x32xbf16>) -> tensor<1x3x32xbf16> loc("sum of rows")
    return %7, %9, %11, %13, %17 : tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x3x32xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x3x64xbf16>) -> (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x3x32xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["cast(bf16)"]} : () -> tensor<64x32xbf16>
    %3 = "top.Weight"() {tensors = ["b"], transforms = ["cast(bf16)"]} : () -> tensor<32xbf16>
    %4 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16>
    %5 = "tpu.Mul"(%4, %4) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16>
    %6 = "tpu.MatMul"(%1, %2, %5) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16>
    %7 = "tpu.MatMul"(%1, %2, %6) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16>
    %8 = "tpu.MatMul"(%1, %2, %3) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, tensor<32xbf16>) -> tensor<1x1x32xbf16>
    %9 = "tpu.Add"(%8, %4) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16>
    %10 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16>
    %11 = "tpu.Add"(%10, %10) : (tensor<1x1x32xbf16>, tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16>
    %12 = "tpu.MatMul"(%arg1, %2, %0) {right_transpose = false} : (tensor<1x3x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x3x32xbf16>
    %13 = "tpu.Mul"(%12, %12) : (tensor<1x3x32xbf16>, tensor<1x3x32xbf16>) -> tensor<1x3x32xbf16>
    %14 = "tpu.MatMul"(%arg1, %2, %0) {right_transpose = false} : (tensor<1x3x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x3x32xbf16>
    %15 = "tpu.Add"(%13, %14) : (tensor<1x3x32xbf16>, tensor<1x3x32xbf16>) -> tensor<1x3x32xbf16>
    return %6, %7, %9, %11, %15 : tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x1x32xbf16>, tensor<1x3x32xbf16>
  }
}
