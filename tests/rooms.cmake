# Which room of include/tiffin includes which (docs/design.md, "Rooms"), from what everything stands on upwards. A room may
# include itself and the headers that lie in include/tiffin itself but for those of SET; the rooms named; and what these name.
#
#   tiffin_room(<room> [MAY rooms...])
#   tiffin_room_file(<header> MAY rooms...)    more than its room, and why

tiffin_room(executor)
tiffin_room(format)  # tensor.hpp stands on it
tiffin_room(grammar MAY format)

# Formulas.
tiffin_room(activation)
tiffin_room(fusion)
tiffin_room(norm MAY grammar)
tiffin_room(router MAY grammar activation)
tiffin_room(source MAY grammar activation fusion norm router)
tiffin_room(modulator MAY source)
tiffin_room(block MAY source)

tiffin_room(plan MAY source)
tiffin_room(bind MAY plan executor)
tiffin_room(call MAY bind)

# How.
tiffin_room(reference MAY call)
tiffin_room(cpu MAY call)
tiffin_room(runtime MAY call)
# Composes the layers that it runs side by side.
tiffin_room_file(runtime/memory_branches.hpp MAY block)
# Rows for calls. Files are opened, mapped and written by io/; a table is one of them.
tiffin_room(table MAY call)
foreach(header IN ITEMS direct_file undo_journal mapped_file row_file table_location)
  tiffin_room_file(table/${header}.hpp MAY io)
endforeach()
tiffin_room(io MAY runtime table block modulator)
tiffin_room_file(io/fold_layer.hpp MAY cpu)
tiffin_room(train MAY call)
# Losses, optimizers, schedules, tables that learn.
tiffin_room(learn MAY train table)
# What learns on `simd`.
tiffin_room_file(train/simd.hpp MAY cpu)
tiffin_room_file(train/simd_product.hpp MAY cpu)
tiffin_room_file(train/factor_layout.hpp MAY cpu)
tiffin_room_file(train/reference.hpp MAY reference)
tiffin_room_file(io/training_layer.hpp MAY train)

tiffin_room(analysis MAY plan table)
tiffin_room(mpi MAY table learn)

# Headers of include/tiffin itself that bring rooms: who includes them has to be allowed these.
tiffin_room_file(tensor.hpp MAY format)
tiffin_room_file(named_memory.hpp MAY format)
tiffin_room_file(layers.hpp MAY block modulator)
tiffin_room_file(all_policies.hpp MAY plan block modulator)
tiffin_room_file(compiled.hpp MAY cpu block modulator)
tiffin_room_file(tiffin.hpp MAY cpu reference analysis block modulator runtime io)
