#loc2 = loc("-":2:19)
#loc3 = loc("-":2:47)
#loc4 = loc("-":2:78)
module @m {
  func.func @main(%arg0: tensor<1x1x64xbf16> loc("-":2:19), %arg1: tensor<1x64x2x16xbf16> loc("-":2:47), %arg2: tensor<1x64x2x16xbf16> loc("-":2:78)) -> (tensor<1x1x64xbf16>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16>) {
    %0 = "top.None"() : () -> none loc(#loc5)
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc6)
    %2 = "top.Input"(%arg1) : (tensor<1x64x2x16xbf16>) -> tensor<1x64x2x16xbf16> loc(#loc7)
    %3 = "top.Input"(%arg2) : (tensor<1x64x2x16xbf16>) -> tensor<1x64x2x16xbf16> loc(#loc8)
    %4 = "top.Weight"() {tensors = ["@causal_mask"], transforms = []} : () -> tensor<256x256xf32> loc(#loc9)
    %5 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "cast(bf16)"]} : () -> tensor<64x32xbf16> loc(#loc10)
    %6:2 = "tpu.Group"(%1) ({
      %10 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 128 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc22)
      %11 = "tpu.Load"(%5) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 64 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 0 : i64} : (tensor<64x32xbf16>) -> tensor<64x32xbf16> loc(#loc22)
      %12 = "tpu.MatMul"(%10, %11, %0) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}, right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc(#loc11)
      %13 = "tpu.Reshape"(%12) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [2], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [16]}} : (tensor<1x1x32xbf16>) -> tensor<1x1x2x16xbf16> loc(#loc12)
      %14 = "tpu.Store"(%13) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [2], id = 4 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [16]}} : (tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16> loc(#loc23)
      %15 = "tpu.MatMul"(%10, %11, %0) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}, right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16> loc(#loc13)
      %16 = "tpu.Store"(%15) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 6 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 64 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16> loc(#loc24)
      "tpu.Yield"(%14, %16) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1x2x16xbf16>, tensor<1x1x32xbf16>) -> () loc(#loc21)
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 2, 3, 6, -2, 5, 4, -3, 0, 1], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x1x64xbf16>) -> (tensor<1x1x2x16xbf16>, tensor<1x1x32xbf16>) loc(#loc21)
    %7 = "tpu.Reshape"(%6#1) : (tensor<1x1x32xbf16>) -> tensor<1x1x2x16xbf16> loc(#loc14)
    %8 = "tpu.Concat"(%2, %6#0) {axis = 1 : i64, only_merge = true} : (tensor<1x64x2x16xbf16>, tensor<1x1x2x16xbf16>) -> tensor<1x65x2x16xbf16> loc(#loc15)
    %9 = "tpu.Group"(%1) ({
      %17 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 128 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc26)
      %18 = "tpu.Add"(%17, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc16)
      %19 = "tpu.Add"(%18, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc17)
      %20 = "tpu.Add"(%19, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc18)
      %21 = "tpu.Add"(%20, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 4 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc19)
      %22 = "tpu.Store"(%21) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc27)
      "tpu.Yield"(%22) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1x64xbf16>) -> () loc(#loc25)
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 1, 5, -2, 2, -3, 3, -4, 4, -5, 0], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16> loc(#loc25)
    return %9, %6#0, %7 : tensor<1x1x64xbf16>, tensor<1x1x2x16xbf16>, tensor<1x1x2x16xbf16> loc(#loc20)
  } loc(#loc1)
} loc(#loc)
#loc = loc("-":1:1)
#loc1 = loc("-":2:3)
#loc5 = loc("-":3:10)
#loc6 = loc("input_states")
#loc7 = loc("history_k")
#loc8 = loc("history_v")
#loc9 = loc("@causal_mask")
#loc10 = loc("w")
#loc11 = loc("k_proj")
#loc12 = loc("k")
#loc13 = loc("v_proj")
#loc14 = loc("v")
#loc15 = loc("keys")
#loc16 = loc("a")
#loc17 = loc("b")
#loc18 = loc("c")
#loc19 = loc("d")
#loc20 = loc("-":18:5)
#loc21 = loc(fused<"layer-group">[#loc11, #loc12, #loc13])
#loc22 = loc(fused<"layer-group">[#loc11])
#loc23 = loc(fused<"layer-group">[#loc12])
#loc24 = loc(fused<"layer-group">[#loc13])
#loc25 = loc(fused<"layer-group">[#loc16, #loc17, #loc18, #loc19])
#loc26 = loc(fused<"layer-group">[#loc16])
#loc27 = loc(fused<"layer-group">[#loc19])
// after
module @m attributes {module.coeff_addr = 4294967296 : i64, module.coeff_size = 266240 : i64, module.io_addr = 4295233536 : i64, module.io_size = 24576 : i64, module.neuron_addr = 4295258112 : i64, module.neuron_size = 0 : i64, module.state = "TPU_ADDRESSED"} {
  func.func @main(%arg0: tensor<1x1x64xbf16, 4295249920 : i64>, %arg1: tensor<1x64x2x16xbf16, 4295233536 : i64>, %arg2: tensor<1x64x2x16xbf16, 4295241728 : i64>) -> (tensor<1x1x64xbf16, 4295254016 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x2x16xbf16, 4295245824 : i64>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295249920 : i64>
    %2 = "top.Input"(%arg1) : (tensor<1x64x2x16xbf16, 4295233536 : i64>) -> tensor<1x64x2x16xbf16, 4295233536 : i64>
    %3 = "top.Input"(%arg2) : (tensor<1x64x2x16xbf16, 4295241728 : i64>) -> tensor<1x64x2x16xbf16, 4295241728 : i64>
    %4 = "top.Weight"() {tensors = ["@causal_mask"], transforms = []} : () -> tensor<256x256xf32, 4294971392 : i64>
    %5 = "top.Weight"() {tensors = ["w"], transforms = ["transpose", "cast(bf16)"]} : () -> tensor<64x32xbf16, 4294967296 : i64>
    %6:2 = "tpu.Group"(%1) ({
      %10 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 128 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16>
      %11 = "tpu.Load"(%5) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [64], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 64 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 0 : i64} : (tensor<64x32xbf16, 4294967296 : i64>) -> tensor<64x32xbf16>
      %12 = "tpu.MatMul"(%10, %11, %0) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}, right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16>
      %13 = "tpu.Reshape"(%12) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [2], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [16]}} : (tensor<1x1x32xbf16>) -> tensor<1x1x2x16xbf16>
      %14 = "tpu.Store"(%13) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [2], id = 4 : i64, n_idx = [0], n_slice = [1], out_addr = 49152 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [16]}} : (tensor<1x1x2x16xbf16>) -> tensor<1x1x2x16xbf16, 4295237632 : i64>
      %15 = "tpu.MatMul"(%10, %11, %0) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 64 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}, right_transpose = false} : (tensor<1x1x64xbf16>, tensor<64x32xbf16>, none) -> tensor<1x1x32xbf16>
      %16 = "tpu.Store"(%15) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [32], id = 6 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 64 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x32xbf16>) -> tensor<1x1x32xbf16, 4295245824 : i64>
      "tpu.Yield"(%14, %16) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x32xbf16, 4295245824 : i64>) -> ()
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 2, 3, 6, -2, 5, 4, -3, 0, 1], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x1x64xbf16, 4295249920 : i64>) -> (tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x32xbf16, 4295245824 : i64>)
    %7 = "tpu.Reshape"(%6#1) : (tensor<1x1x32xbf16, 4295245824 : i64>) -> tensor<1x1x2x16xbf16, 4295245824 : i64>
    %8 = "tpu.Concat"(%2, %6#0) {axis = 1 : i64, only_merge = true} : (tensor<1x64x2x16xbf16, 4295233536 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>) -> tensor<1x65x2x16xbf16, 4295233536 : i64>
    %9 = "tpu.Group"(%1) ({
      %17 = "tpu.Load"(%1) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 128 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16>
      %18 = "tpu.Add"(%17, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
      %19 = "tpu.Add"(%18, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
      %20 = "tpu.Add"(%19, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 3 : i64, n_idx = [0], n_slice = [1], out_addr = 32768 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
      %21 = "tpu.Add"(%20, %17) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 4 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>, tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16>
      %22 = "tpu.Store"(%21) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0], c_slice = [1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [64], id = 5 : i64, n_idx = [0], n_slice = [1], out_addr = 16384 : i64, out_size = 128 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x1x64xbf16>) -> tensor<1x1x64xbf16, 4295254016 : i64>
      "tpu.Yield"(%22) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x1x64xbf16, 4295254016 : i64>) -> ()
    }) {csecs = 1 : i64, dsecs = 1 : i64, flow = [-1, 1, 5, -2, 2, -3, 3, -4, 4, -5, 0], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x1x64xbf16, 4295249920 : i64>) -> tensor<1x1x64xbf16, 4295254016 : i64>
    return %9, %6#0, %7 : tensor<1x1x64xbf16, 4295254016 : i64>, tensor<1x1x2x16xbf16, 4295237632 : i64>, tensor<1x1x2x16xbf16, 4295245824 : i64>
  }
}
