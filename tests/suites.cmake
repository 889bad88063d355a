# All suites: what each is about, how it is compiled, where it runs. A suite is tests/<room>/<thing>_test.cpp, all of it
# in the namespace <room>_<thing>_test, and one test, <room>.<thing>; the rooms are those of include/tiffin. A source that
# has no line here is refused, and so is a line that has no source.
#
#   tiffin_test_program(<name> [O1])   the suites below are one executable, test.<name>, compiled as one file, as what
#                                      they share takes a compiler more time than what they do not. O1: as below.
#
#   tiffin_suite(<room>/<thing> [flags] [TESTS headers of include/tiffin, besides the one at its own path])
#
# HEAVY     has a small form: under TIFFIN_TEST_SMALL it instantiates fewer compositions, of each kind that it is
#           about at least one, and asserts all there is to assert of each.
# THREADS   several threads share memory in it: runs under the thread sanitizer too.
# O3        a program of its own, optimised as its kernels are used in the form `full`, and at -O1 in the small form.
# O1        likewise, at -O1 in the form `full`: unoptimised it would run for a minute and more.
#           The others are not optimised in the form `full`: dozens of compositions and their oracles take minutes to
#           optimise. The kernels that they link are.
# ARM       runs on 64-bit Arm under an emulator too (the form `kernels`).
# DEVICE    the same source on the emulated device, cuda.emulated.<thing>, and by nvcc, cuda.device.<thing>.
#           Those of other rooms than cuda only with TIFFIN_TEST_EMULATED on the emulated one: minutes.
# LEARNS    the same program for the gradients of its texts: train.<thing>, in the form `full`. LEARNS_SMALL: in the
#           other forms too; these have every part that memory is handed between. LEARNS_BY_TYPE: as a program of its own.
# UNSANITIZED  counts allocations by an operator new of its own, or measures memory, and sanitizers have their own of
#           both: a program of its own, and not under them.
# HOST_ONLY by nvcc, but needs no device: cuda.host.<thing>.
# NVCC_ONLY not on the emulated device.
# NVCC_LONG takes nvcc minutes: not in the form `device_quick`.
#
# TIFFIN_TEST_FORM says which of them are built, and how:
#   full          all suites, in full (the preset test)
#   small         all suites, the heavy ones in their small form, optimised as the preset says (sanitize)
#   threads       those with THREADS, likewise (threads)
#   unsanitized   those with UNSANITIZED, likewise (clang, with which sanitize compiles the others)
#   kernels       those with ARM, in full (aarch64)
#   device        what nvcc compiles, alone (benchmarks/cuda/on_a_device.sh)
#   device_quick  the same without NVCC_LONG (cuda)
#
# CTest labels (ctest -L): the room, heavy, threads, small, device, emulated, compile, consumers, examples, and
# long_unoptimised, which clang's preset leaves out: examples that take minutes without optimisation, and
# compilers that a test starts.

# ---- one policy each ----
tiffin_test_program(policies)
tiffin_suite(activation/activation
             TESTS activation/silu.hpp activation/sigmoid.hpp activation/identity.hpp activation/gelu.hpp
                   activation/gelu_tanh.hpp activation/relu.hpp activation/relu_squared.hpp scalar.hpp
                   cpu/simd/lanes.hpp)
tiffin_suite(fusion/fusion TESTS fusion/add.hpp fusion/multiply.hpp)
tiffin_suite(norm/norm
             TESTS norm/gaussian_top_k.hpp norm/l2.hpp norm/no_norm.hpp norm/rms.hpp norm/rms_cast_first.hpp
                   norm/rms_one_plus.hpp)
tiffin_suite(modulator/modulator_norm
             ARM TESTS modulator/modulator_pool.hpp modulator/token_modulator.hpp norm/unweighted.hpp)
tiffin_suite(router/router
             TESTS router/selection.hpp router/softmax.hpp router/sigmoid.hpp)
tiffin_suite(router/row_router
             TESTS router/row_choice.hpp router/product_keys.hpp router/row_range.hpp)
tiffin_suite(format/format
             ARM TESTS format/concepts.hpp format/f32.hpp format/f16.hpp format/bf16.hpp format/q8_0.hpp format/q4_0.hpp
                       format/any_format.hpp format/number_format.hpp dtype.hpp tensor.hpp)
tiffin_suite(format/given_formats
             ARM TESTS format/given_format.hpp format/q4_1.hpp format/q5_0.hpp format/q5_1.hpp format/q2_k.hpp
                       format/q3_k.hpp format/q4_k.hpp format/q5_k.hpp format/q6_k.hpp format/iq4_nl.hpp
                       format/iq4_xs.hpp format/mxfp4.hpp format/nvfp4.hpp format/f8.hpp format/codes.hpp)
tiffin_suite(format/repacked ARM TESTS format/repacked.hpp)
tiffin_suite(block/linear TESTS block/linear.hpp)
tiffin_suite(block/delayed HEAVY TESTS call/carried_residuals.hpp)

# ---- the grammar and its engine, on every backend ----
tiffin_test_program(engine O1)  # half of its time would be in the oracle's functions that it compiles too
tiffin_suite(engine/conformance_named
             HEAVY LEARNS_SMALL ARM DEVICE NVCC_LONG
             TESTS layers.hpp block/ffn.hpp bind/source_sizes.hpp
                   cpu/eigen/eigen.hpp cpu/eigen/machine.hpp cpu/simd/backend.hpp cpu/simd/simd.hpp cpu/simd/machine.hpp
                   cpu/simd/packed_weights.hpp cpu/simd/tile.hpp cpu/output.hpp cpu/engine.hpp cpu/block_sink.hpp)
tiffin_suite(engine/conformance_composed
             HEAVY LEARNS DEVICE NVCC_LONG
             TESTS fixed_string.hpp grammar/concepts.hpp grammar/tree.hpp grammar/roles.hpp
                   source/dense.hpp source/token_embedding.hpp source/named.hpp source/sum.hpp source/gate.hpp
                   source/fused.hpp source/none.hpp cpu/stage.hpp cpu/run_stage.hpp cpu/chain.hpp)
tiffin_suite(engine/conformance_custom
             O1 HEAVY LEARNS_BY_TYPE DEVICE NVCC_LONG
             TESTS grammar/concepts.hpp grammar/parts.hpp grammar/tensor_kinds.hpp scalar.hpp
                   cpu/block_formula.hpp cpu/simd/lanes.hpp)
tiffin_suite(engine/conformance_sources
             HEAVY LEARNS
             TESTS source/dense.hpp source/routed_low_rank.hpp source/routed_embedding.hpp source/normed.hpp
                   source/through.hpp source/memory.hpp source/per_layer_input.hpp
                   modulator/token_modulator.hpp modulator/modulator_pool.hpp)
tiffin_suite(engine/conformance_combinators
             HEAVY LEARNS_SMALL DEVICE NVCC_LONG TESTS cpu/formula_tensors.hpp grammar/parts.hpp block/mixture.hpp block/modulated.hpp
                         block/source_block.hpp block/branch.hpp source/source_input.hpp source/residual_input.hpp)
tiffin_suite(engine/conformance_modulated
             HEAVY LEARNS DEVICE NVCC_LONG
             TESTS source/memory.hpp source/ple_memory.hpp source/scaled.hpp source/normed.hpp
                   block/modulated.hpp block/on_residual.hpp block/parallel.hpp)
tiffin_suite(engine/conformance_routed
             HEAVY LEARNS_SMALL THREADS DEVICE NVCC_LONG
             TESTS source/routed_low_rank.hpp block/mixture.hpp router/hash.hpp cpu/packed_bank.hpp
                   cpu/mixture.hpp cpu/router.hpp cpu/low_rank.hpp cpu/grouped_tokens.hpp)

tiffin_suite(engine/conformance_relatives
             HEAVY LEARNS DEVICE NVCC_LONG
             TESTS router/linear.hpp activation/relu_squared.hpp source/routed_embedding.hpp
                   router/product_keys.hpp router/row_range.hpp router/gated_rows.hpp
                   source/dot_gated.hpp source/engram_memory.hpp source/mean_of_terms.hpp source/centred.hpp source/bias.hpp)

tiffin_suite(engine/random_compositions HEAVY TESTS cpu/engine.hpp plan/compose.hpp)

# ---- what is promised of the CPU's kernels, and fold ----
tiffin_test_program(cpu)
tiffin_suite(cpu/activations
             HEAVY O3
             TESTS cpu/simd/products.hpp cpu/simd/run_products.hpp cpu/product_sums.hpp cpu/simd/panel_product.hpp cpu/simd/weight_kernels.hpp cpu/simd/unit.hpp
                   cpu/simd/integer_dot.hpp cpu/simd/integer_dot_x86.hpp cpu/simd/integer_dot_arm.hpp
                   cpu/simd/integer_row.hpp cpu/simd/integer_panel.hpp cpu/simd/integer_tile.hpp
                   cpu/simd/bf16_tile.hpp format/paired.hpp aligned_buffer.hpp)
tiffin_suite(cpu/amx TESTS cpu/simd/amx.hpp cpu/simd/amx_permission.hpp)
tiffin_other_test(level.emulated_amx.activations TESTS cpu/simd/amx_tile.hpp cpu/simd/amx_product.hpp)
tiffin_suite(cpu/bitwise
             HEAVY THREADS O3
             TESTS cpu/simd/simd.hpp cpu/simd/tile.hpp call/layer.hpp call/fitting_tokens.hpp
                   executor/executor.hpp executor/openmp.hpp)
tiffin_suite(cpu/formats
             HEAVY O1
             TESTS cpu/simd/unit.hpp cpu/simd/packed_weights.hpp cpu/formula_rows.hpp bind/format_checks.hpp
                   bind/stored_numbers.hpp)
tiffin_suite(cpu/fold HEAVY THREADS TESTS source/memory.hpp source/ple_memory.hpp)

# ---- what learns; gradients of compositions: LEARNS ----
tiffin_test_program(train)
tiffin_suite(train/trainable_layer
             TESTS plan/formula.hpp train/prepare_training.hpp train/run_training.hpp train/training_checks.hpp train/training_options.hpp
                   train/parameter.hpp train/chain_rows.hpp train/trained_router.hpp format/f64.hpp)
tiffin_suite(train/simd_product O1 HEAVY TESTS train/simd_product.hpp train/factor_layout.hpp train/transpose.hpp train/simd.hpp)
tiffin_suite(learn/cross_entropy THREADS)
tiffin_suite(learn/router_loss)
tiffin_suite(train/trainable_convolution THREADS)
tiffin_suite(train/training_allocation UNSANITIZED TESTS train/run_training.hpp)
tiffin_suite(learn/stored_table TESTS learn/learning_rows.hpp)
# Of a layer that learns.
tiffin_suite(table/chosen_pool_rows TESTS call/chosen_experts.hpp)
tiffin_suite(learn/adamw
             THREADS TESTS learn/adamw_step.hpp learn/adamw_update.hpp learn/learning_rate.hpp named_memory.hpp)
tiffin_other_test(train.named
                  TESTS train/partials.hpp train/formula_partials.hpp train/formula_plan.hpp train/formula_terms.hpp
                        train/formula_rows.hpp train/training_op.hpp train/training_numbers.hpp train/term_gradients.hpp train/trained_rows.hpp train/training_rows.hpp train/training_call.hpp
                        train/exact_machine.hpp train/reference.hpp)
tiffin_other_test(io.run_gradients
                  TESTS io/training_layer.hpp)
tiffin_other_test(train.relatives TESTS train/trained_row_router.hpp train/trained_row_gate.hpp train/route_partials.hpp)
tiffin_other_test(train.routed TESTS train/routed_leaf.hpp train/trained_bank.hpp train/mixture_rows.hpp)

# ---- the reference ----
tiffin_test_program(plan)
tiffin_suite(reference/reference TESTS reference/row.hpp reference/route.hpp reference/scalar_numbers.hpp)

# ---- compositions as data ----
tiffin_suite(plan/lower TESTS grammar/node_kind.hpp)
tiffin_suite(plan/op TESTS grammar/parts_computed_first.hpp plan/op.hpp plan/ops_of.hpp cpu/route.hpp)
tiffin_suite(plan/text)
tiffin_suite(plan/compose
             TESTS all_policies.hpp grammar/arguments.hpp grammar/option.hpp plan/composition.hpp plan/filled_plan.hpp
                   plan/plan_uses.hpp plan/policies.hpp plan/policy_form.hpp plan/policy_option.hpp plan/text_arguments.hpp)

# ---- binding: what is refused, in which words ----
tiffin_test_program(bind)
tiffin_suite(bind/errors
             TESTS bind/bind_weights.hpp bind/bind_plan.hpp bind/binder.hpp bind/bound.hpp bind/tensor_checks.hpp bind/row_checks.hpp
                   call/call_checks.hpp error.hpp)
tiffin_suite(bind/errors_routed TESTS bind/binder.hpp call/call_arguments.hpp reference/route.hpp)
tiffin_suite(bind/preparation O1 HEAVY THREADS TESTS bind/preparation.hpp cpu/simd/weight_kernels.hpp)
tiffin_suite(bind/limits ARM TESTS bind/sizes.hpp aligned_buffer.hpp call/carried_residuals.hpp)

# ---- layers and calls ----
tiffin_test_program(call)
tiffin_suite(call/allocation UNSANITIZED TESTS call/layer.hpp call/prepare.hpp call/run_layer.hpp)
tiffin_suite(call/call_forms TESTS call/layer.hpp view.hpp)
tiffin_suite(call/in_place HEAVY ARM TESTS bind/bound.hpp)
tiffin_suite(call/onto_inputs HEAVY TESTS call/run_layer.hpp call/call_checks.hpp view.hpp)
tiffin_suite(call/prepare_memory UNSANITIZED TESTS call/prepare.hpp)
tiffin_suite(runtime/any_layer THREADS TESTS call/any_engine.hpp call/layer_of_any_block.hpp)
tiffin_suite(runtime/memory_branches)

# ---- executors ----
tiffin_test_program(executor)
tiffin_suite(executor/checked_executor)
tiffin_suite(executor/fork_mark THREADS)
tiffin_suite(executor/thread_gang THREADS)
tiffin_suite(executor/thread_team THREADS TESTS executor/executor.hpp executor/hardware_threads.hpp
                                                executor/relax.hpp)

# ---- rows that lie elsewhere ----
tiffin_test_program(table)
tiffin_suite(table/row_store TESTS table/joined_columns.hpp table/row_moves.hpp)
tiffin_suite(table/joined_rows)
tiffin_suite(table/float_rows)
tiffin_suite(table/any_id_rows THREADS)
tiffin_suite(table/cached_rows THREADS)
tiffin_suite(table/edits)
tiffin_suite(table/writable_rows
             TESTS table/row_file.hpp table/undo_journal.hpp table/rows_label.hpp table/id_set.hpp io/writable_file.hpp)
tiffin_suite(table/file_stores
             THREADS TESTS table/direct_file.hpp table/mapped_file.hpp table/table_location.hpp
                           io/parallel_reads.hpp io/open_file.hpp)
tiffin_suite(call/gathered_rows HEAVY THREADS)
tiffin_suite(call/scaled_tensors
             HEAVY TESTS format/scales.hpp cpu/kept_rows.hpp table/rows_with_scales.hpp)
tiffin_suite(table/prefetched_rows
             THREADS TESTS table/row_schedule.hpp table/distinct_ids.hpp table/background_reads.hpp)
tiffin_suite(table/ngram_addresses TESTS table/ngram_history.hpp table/engram_hash.hpp table/longcat_hash.hpp)
tiffin_suite(table/ngram_rows THREADS)
tiffin_suite(call/short_convolution THREADS TESTS call/row_history.hpp)
tiffin_suite(call/row_numbers THREADS)
tiffin_suite(table/pool_schedule THREADS TESTS call/token_router.hpp source/routes_of.hpp)
tiffin_suite(mpi/sharded_rows
             TESTS mpi/sharded_pool.hpp mpi/shard_requests.hpp mpi/shard_grid.hpp mpi/shard_checks.hpp
                   mpi/rank_exchange.hpp mpi/halved_sum.hpp)
tiffin_suite(mpi/sharded_gradients)

# ---- files ----
tiffin_test_program(io)
tiffin_suite(io/safetensors
             TESTS io/json_text.hpp io/safetensors_format.hpp io/safetensors_header.hpp io/safetensors_header_reader.hpp io/safetensors_entry.hpp
                   io/safetensors_writer.hpp io/file_mapping.hpp io/output_place.hpp io/unfinished_file.hpp)
tiffin_suite(io/basic_reading_ring TESTS io/reading_ring.hpp)
tiffin_suite(io/gguf TESTS io/gguf_header.hpp io/gguf_value.hpp)
# What of these is tested with a reader of its own: tests/io/run_model_test.py.
tiffin_suite(io/model TESTS io/weight_scales.hpp io/rwkv_model.hpp io/gguf_layers.hpp io/gguf_architectures.hpp io/gguf_model.hpp io/model_source.hpp io/checkpoint.hpp
                            io/checkpoint_config.hpp io/checkpoint_layers.hpp io/checkpoint_tensors.hpp
                            io/json_file.hpp io/quantised_parts.hpp io/used_tensors.hpp io/text_config.hpp io/described_layer.hpp)
tiffin_suite(io/memory_table)
# The readers have tests in Python: tests/io/run_memory_test.py, and clients_test.py where the models' packages are.
tiffin_suite(io/ngram_memory TESTS io/engram_constants.hpp io/described_memory.hpp io/gguf_memory.hpp io/checkpoint_memory.hpp
                                   io/checkpoint_parts.hpp io/engram_adapter.hpp io/longcat_memory.hpp io/per_layer_memory.hpp io/gguf_tensors.hpp
                                   io/model_architecture.hpp)
tiffin_suite(io/side_file TESTS io/ngram_layer.hpp)
tiffin_suite(io/table_file)
tiffin_suite(io/layer_file TESTS io/layer_options.hpp runtime/any_layer.hpp)
tiffin_suite(io/layer_text TESTS io/block_texts.hpp)
tiffin_suite(io/fold_layer TESTS cpu/fold.hpp)
tiffin_suite(io/layer_options)
tiffin_suite(io/quoted TESTS quoted.hpp piece.hpp error.hpp)

# ---- examples/compare_layers ----
tiffin_test_program(examples)
tiffin_suite(compare_example/memory_plan)

# ---- what programs run on a device ----
tiffin_suite(device_example/blocks_on_device)

# ---- examples/convert ----
tiffin_suite(convert_example/gguf_writer)

# ---- the small language model of examples/train ----
tiffin_suite(train_example/language_model)
tiffin_suite(train_example/byte_pairs)
tiffin_suite(train_example/corpus)
tiffin_suite(train_example/text_batches)

# ---- accounts ----
tiffin_test_program(analysis)
tiffin_suite(analysis/cost TESTS plan/tensors_needed.hpp)
tiffin_suite(analysis/cost_layers TESTS analysis/cost.hpp)
tiffin_suite(analysis/cost_of_weights)
tiffin_suite(analysis/model_cost)
tiffin_suite(analysis/scaling_law TESTS analysis/frontier.hpp)
tiffin_suite(analysis/balance)
tiffin_suite(analysis/balanced_map)
tiffin_suite(analysis/equivalence)
tiffin_suite(analysis/geometry)
tiffin_suite(analysis/initialise)
tiffin_suite(analysis/initialise_block)
tiffin_suite(analysis/routing)

# ---- devices ----
tiffin_suite(cuda/numbers DEVICE HOST_ONLY TESTS cuda/values.hpp)
tiffin_suite(cuda/kinds
             HEAVY DEVICE NVCC_LONG TESTS cuda/router.hpp cuda/row_router.hpp cuda/grouping.hpp cuda/mixture.hpp cuda/bank.hpp
                                          cuda/engine/mixture.hpp cuda/engine/rows.hpp cuda/engine/steps.hpp)
tiffin_suite(cuda/formats DEVICE NVCC_LONG TESTS cuda/product.hpp cuda/tiled_product.hpp cuda/kernels.hpp)
tiffin_suite(cuda/layer_calls
             DEVICE TESTS cuda/backend.hpp cuda/call.hpp cuda/call_checks.hpp cuda/blas.hpp cuda/uploads.hpp
                          cuda/device.hpp cuda/held_weights.hpp cuda/from_host.hpp cuda/few_tokens.hpp
                          cuda/engine/chain.hpp cuda/engine/stage.hpp cuda/engine/view.hpp cuda/engine/formula.hpp)
tiffin_suite(cuda/offloaded_pool DEVICE TESTS cuda/table/offloaded_pool.hpp source/routes_of.hpp)
tiffin_suite(cuda/row_numbers DEVICE TESTS call/row_numbers.hpp)
tiffin_suite(cuda/offloaded_rows
             DEVICE TESTS cuda/table/offloaded_rows.hpp cuda/table/row_cache.hpp cuda/table/row_fetch.hpp
                          cuda/table/registered_memory.hpp)
tiffin_suite(cuda/no_device DEVICE HOST_ONLY NVCC_ONLY TESTS cuda/runtime.hpp)

# ---- what the other suites stand on ----
tiffin_suite(support/bounded)

# Tests that are no suites, and the headers that they are about.
tiffin_other_test(compile.umbrella TESTS tiffin.hpp)
tiffin_other_test(compile.two_isa TESTS config.hpp)
tiffin_other_test(compile.marks TESTS instruction_set.hpp)
tiffin_other_test(compile.compiled TESTS compiled.hpp)
tiffin_other_test(cuda.emulated.no_exceptions TESTS cuda.hpp)
