# Compiles the device code and puts it into the library as bytes, where nvcc is found: a toolkit's, or
# one that FL_NVCC names. No runtime of a vendor is linked.
set(FL_NVCC "" CACHE FILEPATH "nvcc for the device code; empty: look for one; OFF: leave it out")
set(FL_DEVICE_ARCHS "90" CACHE STRING "Compute capabilities to make machine code for")

set(fl_nvcc "${FL_NVCC}")
if(NOT fl_nvcc AND NOT "${FL_NVCC}" STREQUAL "OFF")
  find_program(FL_NVCC_FOUND nvcc
    HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  set(fl_nvcc "${FL_NVCC_FOUND}")
endif()

if(FL_SANITIZE)
  message(STATUS "Device code is left out of sanitized builds")
elseif(NOT fl_nvcc)
  message(STATUS "Device code is left out: no nvcc found (set FL_NVCC); copies, casts and fills of "
    "platforms without a twin go through the host")
else()
  # Machine code for the chips that are named, and portable code for every other one.
  set(fl_archs -gencode arch=compute_75,code=compute_75)
  foreach(arch ${FL_DEVICE_ARCHS})
    list(APPEND fl_archs -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  set(fl_image ${CMAKE_CURRENT_BINARY_DIR}/device.fatbin)
  file(GLOB fl_device_sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/src/kernels/*.cu ${PROJECT_SOURCE_DIR}/src/kernels/*.cuh
    ${PROJECT_SOURCE_DIR}/src/kernels/*.h)
  add_custom_command(OUTPUT ${fl_image}
    COMMAND ${fl_nvcc} -std=c++17 -O3 -fatbin ${fl_archs}
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
      -o ${fl_image} ${PROJECT_SOURCE_DIR}/src/kernels/table.cu
    DEPENDS ${fl_device_sources} ${PROJECT_SOURCE_DIR}/include/fl/types.h
    COMMENT "Compiling device code" VERBATIM)
  set_source_files_properties(src/kernels/image.c PROPERTIES
    COMPILE_DEFINITIONS "FL_DEVICE_IMAGE=\"${fl_image}\""
    OBJECT_DEPENDS ${fl_image})
  message(STATUS "Device code is compiled by ${fl_nvcc}")
endif()
