/*
 * image.c: the compiled device code as bytes of the library.
 *
 * The build names the file in FL_DEVICE_IMAGE; without it the image is empty.
 */
#include "kernels/image.h"

#ifdef FL_DEVICE_IMAGE
#define CONTENT ".incbin \"" FL_DEVICE_IMAGE "\"\n"
#else
#define CONTENT ""
#endif

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global fl__device_image\n"
        ".hidden fl__device_image\n"
        "fl__device_image:\n" CONTENT ".global fl__device_image_end\n"
        ".hidden fl__device_image_end\n"
        "fl__device_image_end:\n"
        ".byte 0\n"
        ".popsection\n");
