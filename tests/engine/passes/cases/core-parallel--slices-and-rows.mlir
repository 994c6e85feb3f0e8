// options: chip_name=bm1688 cores=2
module @m {
  func.func @main(%arg0: tensor<1x65x8xbf16>, %arg1: tensor<1x65xsi32>) -> (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("input_states")
    %2 = "top.Input"(%arg1) : (tensor<1x65xsi32>) -> tensor<1x65xsi32> loc("input_ids")
    %3 = "top.Weight"() {tensors = ["table"], transforms = ["cast(bf16)"]} : () -> tensor<96x8xbf16> loc("table")
    %4 = "tpu.Gather"(%3, %2) : (tensor<96x8xbf16>, tensor<1x65xsi32>) -> tensor<1x65x8xbf16> loc("embedding")
    %5 = "tpu.Group"(%4) ({
      %8 = "tpu.Load"(%4) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 16 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("twice")
      %9 = "tpu.Add"(%8, %8) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 8192 : i64, out_size = 16 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("twice")
      %10 = "tpu.Store"(%9) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 8192 : i64, out_size = 16 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("twice")
      "tpu.Yield"(%10) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x65x8xbf16>) -> () loc("twice")
    }) {csecs = 3 : i64, dsecs = 1 : i64, flow = [-1, 1, 0, 2], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("twice")
    %6 = "tpu.Mul"(%5, %1) : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16> loc("scaled")
    %7 = "tpu.Concat"(%6, %1) {axis = 1 : i64} : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x130x8xbf16> loc("both")
    return %6, %1 : tensor<1x65x8xbf16>, tensor<1x65x8xbf16>
  }
}
// after
module @m {
  func.func @main(%arg0: tensor<1x65x8xbf16>, %arg1: tensor<1x65xsi32>) -> (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) {
    %0 = "top.None"() : () -> none
    %1 = "top.Input"(%arg0) : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
    %2 = "top.Input"(%arg1) : (tensor<1x65xsi32>) -> tensor<1x65xsi32>
    %3 = "top.Weight"() {tensors = ["table"], transforms = ["cast(bf16)"]} : () -> tensor<96x8xbf16>
    %4 = "tpu.Gather"(%3, %2) {core_dim = 1 : i64, core_split = [[0, 33], [33, 32]], run_core_id = [0, 1]} : (tensor<96x8xbf16>, tensor<1x65xsi32>) -> tensor<1x65x8xbf16>
    %5 = "tpu.Group"(%4) ({
      %8 = "tpu.Load"(%4) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 0 : i64, n_idx = [0], n_slice = [1], out_addr = 0 : i64, out_size = 16 : i64, stage = 0 : i64, w_idx = [0], w_slice = [1]}, held = false, lmem_type = 1 : i64} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
      %9 = "tpu.Add"(%8, %8) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 1 : i64, n_idx = [0], n_slice = [1], out_addr = 8192 : i64, out_size = 16 : i64, stage = 1 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
      %10 = "tpu.Store"(%9) {ginfo = {buffer_addr = 0 : i64, buffer_size = 0 : i64, c_idx = [0, 32, 64], c_slice = [32, 32, 1], d_idx = [0], d_slice = [1], eu_align = true, group_type = 4 : i64, h_idx = [0], h_slice = [8], id = 2 : i64, n_idx = [0], n_slice = [1], out_addr = 8192 : i64, out_size = 16 : i64, stage = 2 : i64, w_idx = [0], w_slice = [1]}} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
      "tpu.Yield"(%10) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x65x8xbf16>) -> ()
    }) {core_split = [[0, 2], [2, 1]], csecs = 3 : i64, dsecs = 1 : i64, flow = [-1, 1, 0, 2], group_type = 4 : i64, hsecs = 1 : i64, nsecs = 1 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, run_core_id = [0, 1], swpipl_stage_num = 3 : i64, wsecs = 1 : i64} : (tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
    %6 = "tpu.Mul"(%5, %1) {core_dim = 1 : i64, core_split = [[0, 33], [33, 32]], run_core_id = [0, 1]} : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x65x8xbf16>
    %7 = "tpu.Concat"(%6, %1) {axis = 1 : i64, run_core_id = [0]} : (tensor<1x65x8xbf16>, tensor<1x65x8xbf16>) -> tensor<1x130x8xbf16>
    return %6, %1 : tensor<1x65x8xbf16>, tensor<1x65x8xbf16>
  }
}
