# The manual page and the completions of shells, which the program prints from its table of options. A build for another processor cannot
# run the program, so it has none of them.
if(CMAKE_CROSSCOMPILING)
  return()
endif()
set(pages ${PROJECT_BINARY_DIR}/pages)
file(MAKE_DIRECTORY ${pages})
function(terrace_page file destination)  # the further arguments: the words that print the file
  add_custom_command(OUTPUT ${pages}/${file} COMMAND terrace_program ${ARGN} > ${pages}/${file}
    DEPENDS terrace_program COMMENT "Printing ${file}" VERBATIM)
  install(FILES ${pages}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${destination} COMPONENT program OPTIONAL)
  install(FILES ${pages}/${file} DESTINATION share/${destination} COMPONENT folder EXCLUDE_FROM_ALL OPTIONAL)
  set(printed ${printed} ${pages}/${file} PARENT_SCOPE)
endfunction()
set(printed)
terrace_page(terrace.1 man/man1 man)
terrace_page(terrace bash-completion/completions completions bash)  # bash looks for the name of the program
terrace_page(_terrace zsh/site-functions completions zsh)
terrace_page(terrace.fish fish/vendor_completions.d completions fish)
add_custom_target(terrace_pages ALL DEPENDS ${printed})
