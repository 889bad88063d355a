// Training on the reference backend, in double: what faster backends are tested against.
#pragma once

#include <tiffin/reference/reference.hpp>
#include <tiffin/train/exact_machine.hpp>
#include <tiffin/train/prepare_training.hpp>

TIFFIN_BEGIN

template <class Scalar>
struct training_machine<reference<Scalar>> {
    using type = train_detail::exact_machine<Scalar>;
    using product = train_detail::exact_product<Scalar>;
};

TIFFIN_END
