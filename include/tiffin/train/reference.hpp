// Training on the reference backend, in double: what faster backends are tested against.
#pragma once

#include <tiffin/plan/policies.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/train/exact_machine.hpp>
#include <tiffin/train/prepare_training.hpp>

#include <vector>

TIFFIN_BEGIN

template <class Scalar>
struct training_machine<reference<Scalar>> {
    using type = train_detail::exact_machine<Scalar>;
    using product = train_detail::exact_product<Scalar>;
};

// With the compiled library training is linked, not instantiated.
#if defined(TIFFIN_COMPILED_ENGINES)
TIFFIN_COMPILED_OTHER_ENGINE_ template class trainable_layer<double>;
namespace train_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template result<trainable_layer<double>> prepare_plan<reference<>>(
    const plan_node&, std::shared_ptr<const void>, const weights&, const training_options<double>&);
}  // namespace train_detail
namespace plan_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template void add_library_policies<training<reference<>>::machine>(
    std::vector<policy_line>&);
}  // namespace plan_detail
#endif

TIFFIN_END
