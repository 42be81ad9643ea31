# What `cmake --install` puts besides the program: public headers, both libraries, a CMake package, a pkg-config file.
# Included by kvarto_library() once the two library targets exist.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvarto)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvarto DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# Two exports: a user of the shared library needs no development packages but tl::expected.
foreach(kind shared static)
  install(TARGETS kvarto_lib_${kind} EXPORT kvarto_${kind}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT kvarto_${kind} NAMESPACE kvarto:: FILE kvarto_${kind}.cmake DESTINATION ${package_dir})
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvartoConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvartoConfig.cmake INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvartoConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvartoConfig.cmake ${PROJECT_BINARY_DIR}/kvartoConfigVersion.cmake
  DESTINATION ${package_dir})

# The prefix is found from where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kvarto.pc.in ${PROJECT_BINARY_DIR}/kvarto.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvarto.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
