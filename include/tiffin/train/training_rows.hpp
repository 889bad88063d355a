// From a source to what trains it: one class for each way in which rows are computed.
#pragma once

#include <tiffin/train/chain_rows.hpp>
#include <tiffin/train/formula_rows.hpp>
#include <tiffin/train/mixture_rows.hpp>

#include <memory>

TIFFIN_BEGIN

namespace train_detail {

template <class M, source_policy Source>
struct rows_that_learn {
    using type = formula_rows<M, Source>;
};
template <class M, chained_source Source>
struct rows_that_learn<M, Source> {
    using type = chain_rows<M, Source>;
};
template <class M, source_policy Source>
    requires detail::has_role<Source, mixture_role>
struct rows_that_learn<M, Source> {
    using type = mixture_rows<M, Source>;
};
template <class M, source_policy Source>
    requires detail::has_role<Source, residual_role>
struct rows_that_learn<M, Source> {
    using type = residual_rows<M, Source>;
};
template <class M, source_policy Source>
    requires detail::has_role<Source, delay_role>
struct rows_that_learn<M, Source> {
    using type = delayed_rows<M, Source>;
};
template <class M, source_policy Source>
    requires detail::has_role<Source, repeated_role>
struct rows_that_learn<M, Source> {
    using type = repeated_rows<M, Source>;
};

// A source whose kind is known only at run time makes its rows itself.
template <class M, source_policy Source>
std::unique_ptr<const trained_rows<typename M::number>> make_trained_rows(
    const Source& source, const bound_node& bound, const engine_detail::source_sizes& sizes,
    training_preparation<typename M::number>& how) {
    if constexpr (detail::has_role<Source, runtime_role>)
        return source.make_rows(bound.parts[0], sizes, how);
    else
        return std::make_unique<const typename rows_that_learn<M, Source>::type>(source, bound, sizes, how);
}

}  // namespace train_detail

TIFFIN_END
