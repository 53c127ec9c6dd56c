# Compiler settings shared by every target, in one interface library: pd_flags.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
set(PD_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, comma separated; empty for none")

find_program(PD_CCACHE ccache)
if(PD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PD_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${PD_CCACHE})
endif()

add_library(pd_flags INTERFACE)
target_include_directories(pd_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_include_directories(pd_flags SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/proto)
# No contraction: the order and rounding of every float operation is the source's, on every compiler.
target_compile_options(pd_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
                                          -ffp-contract=off -fno-omit-frame-pointer)
if(PD_SANITIZE)
  target_compile_options(pd_flags INTERFACE -fsanitize=${PD_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(pd_flags INTERFACE -fsanitize=${PD_SANITIZE})
  # GCC 12 sees uninitialised members in std::function once a sanitizer is on.
  target_compile_options(pd_flags INTERFACE -Wno-maybe-uninitialized)
  if(PD_SANITIZE MATCHES thread)
    # GCC warns that fences are not modelled; none of ours are relied on by another mechanism.
    target_compile_options(pd_flags INTERFACE -Wno-tsan)
  endif()
endif()
find_program(PD_MOLD mold)
if(PD_MOLD AND NOT CMAKE_CROSSCOMPILING)
  target_link_options(pd_flags INTERFACE -fuse-ld=mold)
endif()
