// All kernels of one element type, as they sum what arrives and can damage it on purpose (`check.cuh`). The generator
// compiles this file once a type, with ELEMENT, NAME and CHECKED defined.
#include "allreduce.cu"
#include "direct.cu"
