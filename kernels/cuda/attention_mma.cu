#include "kernels/cuda/attention.cuh"
int cuda_attention_mma(struct cuda_dev *, const attn_args &, uint32_t *done) { *done = 0; return 0; }
