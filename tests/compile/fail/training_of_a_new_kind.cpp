// expect: tiffin: prepare_training: a source has a tensor of a kind that cannot be trained
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

struct own_vector : tiffin::vector<"own"> {
#ifndef TIFFIN_EXPECT_PASS
    static constexpr auto kind =
        static_cast<tiffin::tensor_kind>(200);  // one that nobody has told the library of
#endif
};
struct own_source {
    using tensors = tiffin::tensor_list<own_vector>;
    static constexpr std::string_view name = "";
    static constexpr double flops() noexcept { return 0; }

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[own_vector{}];
    }
};

void learn(const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare_training<tiffin::ffn<tiffin::gate<tiffin::silu>, own_source>>(
        given, tiffin::reference<>{}));
}
