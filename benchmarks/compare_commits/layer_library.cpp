// The library of one commit's layers. COMPARED_COMMIT is what the commit is called.
#include "layer_library.hpp"

#include "layer_sets.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>

namespace tiffin_compare {

// By how much calls are made to take longer: 0, but in the library that the self-test is to find slow. Of one
// name in both libraries and not inlined: if their functions were mixed, both would be slow, or none.
[[gnu::noinline]] inline int hundredths_slower() {
    return COMPARED_HUNDREDTHS_SLOWER;
}

namespace {

const layer_list& all_layers() {
    static const layer_list list = [] {
        layer_list all;
        add_dense_layers(all);
        add_routed_layers(all);
        add_memory_layers(all);
        add_layers_in_formats(all);
        add_trained_layers(all);
        return all;
    }();
    return list;
}

// The program's threads, as an executor of this library's tiffin.
struct borrowed_team {
    const executor& given;

    [[nodiscard]] std::size_t concurrency() const noexcept { return given.threads; }
    void operator()(std::size_t n, const tiffin::task_ref& task) const {
        given.execute(
            given.team, n,
            [](const void* object, std::size_t i) { (*static_cast<const tiffin::task_ref*>(object))(i); },
            &task);
    }
};

struct made_layer {
    const named_layer& layer;
    std::array<std::unique_ptr<any_set>, sets> made{};
    tiffin::workspace workspace{};
    tiffin::carried_residuals carried{2, most_tokens, layer.d_model};
    std::size_t tokens = 0;  // of the last call

    void run(std::size_t set, const layer_call& call) {
        const borrowed_team execute{*call.execute};
        if (workspace.size() == 0)
            workspace = tiffin::workspace(made[set]->workspace_bytes(most_tokens, execute.concurrency()));
        if (tokens != call.tokens) carried.begin();
        tokens = call.tokens;
        tiffin::token_inputs inputs;
        inputs.token_ids = {call.token_ids, tokens};
        inputs.per_layer_input = {call.per_layer_input, tokens, memory_width};
        inputs.carried = &carried;
        made[set]->run({call.x, tokens, layer.d_model}, inputs, {call.y, tokens, layer.d_model}, workspace,
                       execute);
    }
};

void run_slower(made_layer& layer, std::size_t set, const layer_call& call, int hundredths) {
    using clock = std::chrono::steady_clock;
    const clock::time_point start = clock::now();
    layer.run(set, call);
    const clock::time_point end = start + (clock::now() - start) * (100 + hundredths) / 100;
    while (clock::now() < end) {
    }
}

// No exception leaves the library.
template <class Work>
bool done(const char* layer, const Work& work) noexcept {
    try {
        work();
        return true;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "time_layers: %s of %s: %s\n", layer, COMPARED_COMMIT, error.what());
        return false;
    }
}

made_layer& layer_of(void* layer) {
    return *static_cast<made_layer*>(layer);
}

const layer_library library{
    .commit = COMPARED_COMMIT,
    .layers = [] { return all_layers().size(); },
    .name = [](std::size_t layer) { return all_layers()[layer].name.c_str(); },
    .d_model = [](std::size_t layer) { return all_layers()[layer].d_model; },
    .begin = [](std::size_t layer) -> void* {
        made_layer* begun = nullptr;
        done(all_layers()[layer].name.c_str(), [&] { begun = new made_layer{all_layers()[layer]}; });
        return begun;
    },
    .make_set =
        [](void* layer, std::size_t set) {
            made_layer& its = layer_of(layer);
            return done(its.layer.name.c_str(),
                        [&] { its.made[set] = its.layer.make(static_cast<std::uint32_t>(set + 1)); });
        },
    .run =
        [](void* layer, std::size_t set, const layer_call* call) {
            made_layer& its = layer_of(layer);
            return done(its.layer.name.c_str(), [&] {
                if (const int hundredths = hundredths_slower(); hundredths > 0)
                    run_slower(its, set, *call, hundredths);
                else
                    its.run(set, *call);
            });
        },
    .end = [](void* layer) { delete &layer_of(layer); },
};

}  // namespace

extern "C" const layer_library* tiffin_layer_library() {
    return &library;
}

}  // namespace tiffin_compare
