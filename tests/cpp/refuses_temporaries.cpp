// refuses_temporaries.cpp: compiled several times by refuses_temporaries.py, with CASE 0 to 5. The
// even cases bind variables and must compile; the odd ones bind a temporary and must not.
#include "shadow.h"

#include <ATen/ATen.h>

at::Tensor make();

void use(const at::Tensor &borrowed, at::Tensor &variable) {
    fl_torch::ShadowFrame frame;
#if CASE == 0
    frame.show(borrowed, false);
    frame.show(variable, true);
#elif CASE == 1
    frame.show(make(), false);
#elif CASE == 2
    const at::Tensor kept = variable.t();
    frame.show(kept, false);
#elif CASE == 3
    frame.show(variable.t(), false);
#elif CASE == 4
    const at::Tensor &lengthened = make();
    frame.show(lengthened, false);
#elif CASE == 5
    frame.show(std::move(variable), false);
#endif
}
