/*
 * table.cu: all device code as one object, so that a device loads one module.
 */
#include "kernels/cast.cu"
#include "kernels/copy_strided.cu"
#include "kernels/copy_tile.cu"
#include "kernels/fill.cu"
