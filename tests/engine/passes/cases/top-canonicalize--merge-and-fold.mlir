module @m {
  func.func @main(%arg0: tensor<1x4x8xf32>) -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>) {
    %0 = "top.None"() : () -> none
    %1 = "top.None"() : () -> none
    %2 = "top.Input"(%arg0) : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32> loc("x")
    %3 = "top.Weight"() {tensors = ["w"], transforms = ["transpose"]} : () -> tensor<8x8xf32> loc("w")
    %4 = "top.Weight"() {tensors = ["w"], transforms = ["transpose"]} : () -> tensor<8x8xf32> loc("w")
    %5 = "top.Weight"() {tensors = ["unused"], transforms = []} : () -> tensor<8xf32> loc("unused")
    %6 = "top.MatMul"(%2, %3, %0) {right_transpose = false} : (tensor<1x4x8xf32>, tensor<8x8xf32>, none) -> tensor<1x4x8xf32> loc("a")
    %7 = "top.MatMul"(%2, %4, %1) {right_transpose = false} : (tensor<1x4x8xf32>, tensor<8x8xf32>, none) -> tensor<1x4x8xf32> loc("b")
    %8 = "top.Reshape"(%6) : (tensor<1x4x8xf32>) -> tensor<1x4x2x4xf32> loc("r1")
    %9 = "top.Reshape"(%8) : (tensor<1x4x2x4xf32>) -> tensor<1x4x8xf32> loc("r2")
    return %9, %7 : tensor<1x4x8xf32>, tensor<1x4x8xf32>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x4x8xf32>) -> (tensor<1x4x8xf32>, tensor<1x4x8xf32>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
    %2 = "top.Weight"() {tensors = ["w"], transforms = ["transpose"]} : () -> tensor<8x8xf32>
    %3 = "top.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x4x8xf32>, tensor<8x8xf32>, none) -> tensor<1x4x8xf32>
    %4 = "top.MatMul"(%1, %2, %0) {right_transpose = false} : (tensor<1x4x8xf32>, tensor<8x8xf32>, none) -> tensor<1x4x8xf32>
    return %3, %4 : tensor<1x4x8xf32>, tensor<1x4x8xf32>
  }
}
