// refuses_temporaries.cpp: compiled three times by refuses_temporaries.py. CASE 0 binds variables
// and must compile; the others bind a temporary and a variable that is given away, and must not.
#include "shadow.h"

at::Tensor make();

void use(const at::Tensor &borrowed, at::Tensor &variable) {
    fl_torch::ShadowFrame frame;
#if CASE == 0
    const at::Tensor &lengthened = make();
    frame.show(borrowed, false);
    frame.show(variable, true);
    frame.show(lengthened, false);
#elif CASE == 1
    frame.show(make(), false);
#elif CASE == 2
    frame.show(std::move(variable), false);
#endif
}
