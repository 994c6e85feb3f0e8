// options: chip_name=bm1688
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x1x64xf32>) -> (tensor<1x1x64xbf16>, tensor<1x1x64xf32>, tensor<1x1x64xf32>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("input_states")
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["cast(bf16)"]} : () -> tensor<64x64xbf16> loc("w")
    %3 = "top.Weight"() {tensors = ["w"], transforms = []} : () -> tensor<64x64xf32> loc("w")
    %4 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x64xbf16>, none) -> tensor<1x1x64xbf16> loc("half")
    %5 = "tpu.Add"(%1, %4) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc("sum of half")
    %6 = "tpu.MatMul"(%arg1, %3, %0) {right_transpose = false} : (tensor<1x1x64xf32>, tensor<64x64xf32>, none) -> tensor<1x1x64xf32> loc("wide")
    %7 = "tpu.Add"(%arg1, %6) : (tensor<1x1x64xf32>, tensor<1x1x64xf32>) -> tensor<1x1x64xf32> loc("sum of wide")
    return %5, %7, %7 : tensor<1x1x64xbf16>, tensor<1x1x64xf32>, tensor<1x1x64xf32>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16>, %arg1: tensor<1x1x64xf32>) -> (tensor<1x1x64xbf16>, tensor<1x1x64xf32>, tensor<1x1x64xf32>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["cast(bf16)"]} : () -> tensor<64x64xbf16>
    %3 = "top.Weight"() {tensors = ["w"], transforms = []} : () -> tensor<64x64xf32>
    %4 = "tpu.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x64xbf16>, none) -> tensor<1x1x64xbf16>
    %5 = "tpu.Add"(%1, %4) : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
    %6 = "tpu.MatMul"(%arg1, %3, %arg1) {right_transpose = false} : (tensor<1x1x64xf32>, tensor<64x64xf32>, tensor<1x1x64xf32>) -> tensor<1x1x64xf32>
    return %5, %6, %6 : tensor<1x1x64xbf16>, tensor<1x1x64xf32>, tensor<1x1x64xf32>
  }
}
