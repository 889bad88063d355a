// Inside an inference engine: raw pointers, the engine's own threads, no exceptions, one workspace for
// all layers. Compiled with -fno-exceptions -fno-rtti.
#include <tiffin/tiffin.hpp>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

// A thread pool as an engine has one: execute(n, task) runs task(0) to task(n - 1) and waits.
class engine_pool {
public:
    explicit engine_pool(std::size_t threads) {
        for (std::size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
    }
    ~engine_pool() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    // What tiffin asks of an executor; concurrency() is optional.
    [[nodiscard]] std::size_t concurrency() const { return workers_.size() + 1; }
    void operator()(std::size_t n, const tiffin::task_ref& task) {
        std::unique_lock lock(mutex_);
        task_ = &task;
        next_ = 0;
        count_ = left_ = n;
        wake_.notify_all();
        work(lock);
        done_.wait(lock, [this] { return left_ == 0; });
        task_ = nullptr;
    }

private:
    void work(std::unique_lock<std::mutex>& lock) {
        while (task_ != nullptr && next_ < count_) {
            const std::size_t i = next_++;
            const tiffin::task_ref& task = *task_;
            lock.unlock();
            task(i);
            lock.lock();
            if (--left_ == 0) done_.notify_one();
        }
    }
    void serve() {
        std::unique_lock lock(mutex_);
        while (!stopping_) {
            work(lock);
            wake_.wait(lock, [this] { return stopping_ || (task_ != nullptr && next_ < count_); });
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const tiffin::task_ref* task_ = nullptr;
    std::size_t next_ = 0, count_ = 0, left_ = 0;
    bool stopping_ = false;
};

using engine_layer = tiffin::layer<tiffin::stem, tiffin::simd<>>;

int main() {
    const std::size_t d_model = 256, d_ff = 704, vocab = 1000, depth = 4;
    const std::vector<float> gate(d_ff * d_model, 0.01f), table(vocab * d_ff, 0.5f),
        down(d_model * d_ff, 0.01f);
    tiffin::weights weights;
    weights.add("gate_proj.weight", gate.data(), {d_ff, d_model})
        .add("stem_embed.weight", table.data(), {vocab, d_ff})
        .add("down_proj.weight", down.data(), {d_model, d_ff});

    std::vector<engine_layer> layers;
    for (std::size_t i = 0; i < depth; ++i) {
        auto made = tiffin::try_prepare<tiffin::stem>(weights, tiffin::simd{}, {.tokens = 0});
        if (!made) {
            std::fprintf(stderr, "%s\n", made.failure().message().c_str());
            return EXIT_FAILURE;
        }
        layers.push_back(*std::move(made));
    }

    engine_pool pool(2);
    tiffin::workspace workspace = layers[0].make_workspace(32, pool.concurrency());
    const std::vector<std::int32_t> ids{1, 2, 3, 5, 8, 13, 21, 34};
    std::vector<float> hidden(ids.size() * d_model, 1.0f), ffn(hidden.size());
    for (const engine_layer& layer : layers) {
        const tiffin::matrix_view<const float> x(hidden.data(), ids.size(), d_model);
        const tiffin::matrix_view<float> y(ffn.data(), ids.size(), d_model);
        if (const tiffin::status s = layer.try_call(x, ids, y, workspace, pool); !s) {
            std::fprintf(stderr, "%s\n", s.failure().message().c_str());
            return EXIT_FAILURE;
        }
        for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += ffn[i];  // the residual stream
    }
    std::printf("after %zu layers: %.4f\n", layers.size(), static_cast<double>(hidden[0]));

    // Errors are values here.
    const std::vector<std::int32_t> wrong{1, 2, 3, 5, 8, 13, 21, 1000};
    const tiffin::matrix_view<const float> x(hidden.data(), ids.size(), d_model);
    const tiffin::matrix_view<float> y(ffn.data(), ids.size(), d_model);
    const tiffin::status refused = std::as_const(layers[0]).try_call(x, wrong, y, workspace, pool);
    std::printf("refused: %s\n", refused ? "nothing" : refused.failure().message().c_str());
    return refused ? EXIT_FAILURE : EXIT_SUCCESS;
}
