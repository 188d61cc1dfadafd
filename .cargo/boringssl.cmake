# Cargo's opt-level "s" (profile `ci`) is CMake's MinSizeRel; other profiles keep their flags.
# Ciphers are assembly anyway. The flags come after BoringSSL's own, so -g0 undoes its -ggdb.
set(CMAKE_C_FLAGS_MINSIZEREL "-O1 -g0 -DNDEBUG" CACHE STRING "")
set(CMAKE_CXX_FLAGS_MINSIZEREL "-O1 -g0 -DNDEBUG" CACHE STRING "")
