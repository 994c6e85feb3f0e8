module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>) -> tensor<1x1x96xbf16> {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).weight"]} : () -> tensor<96x32xui8> loc("w")
    %3 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).scale", "cast(bf16)"]} : () -> tensor<96x1xbf16> loc("w")
    %4 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).zero_point"]} : () -> tensor<96x1xui8> loc("w")
    %5 = "tpu.A16MatMul"(%1, %2, %3, %4, %0) {q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x1x64xbf16>, tensor<96x32xui8>, tensor<96x1xbf16>, tensor<96x1xui8>, none) -> tensor<1x1x96xbf16> loc("q_proj")
    return %5 : tensor<1x1x96xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>) -> tensor<1x1x96xbf16> {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).weight"]} : () -> tensor<96x32xui8>
    %3 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).scale", "cast(bf16)", "lane-reorder(64)"]} : () -> tensor<64x2x1xbf16>
    %4 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "quantize(w4,g64,asymmetric).zero_point", "lane-reorder(64)"]} : () -> tensor<64x2x1xui8>
    %5 = "tpu.A16MatMul"(%1, %2, %3, %4, %0) {q_group_size = 64 : i64, w_transpose = true, weight_bits = 4 : i64} : (tensor<1x1x64xbf16>, tensor<96x32xui8>, tensor<64x2x1xbf16>, tensor<64x2x1xui8>, none) -> tensor<1x1x96xbf16>
    return %5 : tensor<1x1x96xbf16>
  }
}
