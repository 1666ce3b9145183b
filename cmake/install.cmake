# What `make build` leaves in out/ and an image or a package takes from there. A target that is not built yet is left
# out here and missed by tests/packaging.
install(TARGETS gpulet gpulet-hook RUNTIME DESTINATION bin)
# Called by these names, gpulet takes that program's flags and environment; kubectl finds its plugin, and the plugin's
# completions, by the last two.
foreach(name nvidia-device-plugin gpu-feature-discovery mps-control-daemon config-manager dcgm-exporter
             nvidia-mig-manager nvidia-mig-parted mig-parted kubectl-gpulet kubectl_complete-gpulet)
  install(CODE "file(CREATE_LINK gpulet \"\${CMAKE_INSTALL_PREFIX}/bin/${name}\" SYMBOLIC)")
endforeach()
if(TARGET gpulet-sim)
  install(TARGETS gpulet-sim RUNTIME DESTINATION bin)
endif()
if(TARGET sim_nvidia_ml)
  install(TARGETS sim_nvidia_ml sim_cuda_driver LIBRARY DESTINATION lib/gpulet/sim NAMELINK_SKIP)
endif()
foreach(program nvidia-smi nvidia-cuda-mps-control)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION lib/gpulet/sim)
  endif()
endforeach()

# A build tree has the same bin/ and lib/ as what is installed, so that gpulet-sim finds its library and `gpulet-sim demo`
# finds gpulet in either: the simulated tests of every preset run the programs from there.
foreach(target gpulet gpulet-hook gpulet-sim)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  endif()
endforeach()
foreach(target sim_nvidia_ml sim_cuda_driver nvidia-smi nvidia-cuda-mps-control)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/gpulet/sim
                                               RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/gpulet/sim)
  endif()
endforeach()
