module @m {
  func.func @main(%arg0: tensor<1x2x7xf32>) -> tensor<1x2x8xf32> {
    %0 = "top.Input"(%arg0) : (tensor<1x2x7xf32>) -> tensor<1x2x7xf32> loc("input_states")
    %1 = "top.Weight"() {tensors = ["w"], transforms = ["transpose"]} : () -> tensor<7x8xf32> loc("w")
    %2 = "top.Weight"() {tensors = ["b"], transforms = []} : () -> tensor<8xf32> loc("b")
    %3 = "top.MatMul"(%0, %1, %2) {right_transpose = false} : (tensor<1x2x7xf32>, tensor<7x8xf32>, tensor<8xf32>) -> tensor<1x2x8xf32> loc("q_proj")
    return %3 : tensor<1x2x8xf32>
  }
}
// after
module @m attributes {module.state = "TPU_LOWERED"} {
  func.func @main(%arg0: tensor<1x2x7xf32>) -> tensor<1x2x8xf32> {
    %0 = "top.Input"(%arg0) : (tensor<1x2x7xf32>) -> tensor<1x2x7xf32>
    %1 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "cast(bf16)"]} : () -> tensor<7x8xbf16>
    %2 = "top.Weight"() {tensors = ["b"], transforms = ["cast(bf16)"]} : () -> tensor<8xbf16>
    %3 = "tpu.Cast"(%0) : (tensor<1x2x7xf32>) -> tensor<1x2x7xbf16>
    %4 = "tpu.MatMul"(%3, %1, %2) {right_transpose = false} : (tensor<1x2x7xbf16>, tensor<7x8xbf16>, tensor<8xbf16>) -> tensor<1x2x8xbf16>
    %5 = "tpu.Cast"(%4) : (tensor<1x2x8xbf16>) -> tensor<1x2x8xf32>
    return %5 : tensor<1x2x8xf32>
  }
}
