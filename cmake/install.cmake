include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS tiffin tiffin_io EXPORT tiffin-targets FILE_SET HEADERS)
# The device's headers lie with the others; tiffinConfig.cmake makes tiffin::cuda for those who have the toolkit.
install(DIRECTORY cuda/include/tiffin DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET tiffin_c)
  install(TARGETS tiffin_c EXPORT tiffin-targets FILE_SET HEADERS)
endif()
install(EXPORT tiffin-targets FILE tiffinTargets.cmake NAMESPACE tiffin::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tiffin)
configure_package_config_file(cmake/tiffinConfig.cmake.in tiffinConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tiffin)
write_basic_package_version_file(tiffinConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tiffinConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tiffinConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tiffin)
