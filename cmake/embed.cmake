# The dashboard's page and Debian's Chart.js, which src/server/dashboard.cc compiles into the program.
function(kvarto_web_assets)
  find_file(KVARTO_CHART_JS NAMES chart.min.js Chart.min.js chart.js Chart.js
    PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist NO_DEFAULT_PATH
    DOC "Chart.js 3 for browsers (package libjs-chart.js)")
  if(NOT KVARTO_CHART_JS)
    message(FATAL_ERROR "Chart.js is missing; install libjs-chart.js or give -DKVARTO_CHART_JS=FILE")
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/src/server/web)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*)
  set_source_files_properties(src/server/dashboard.cc PROPERTIES
    COMPILE_DEFINITIONS "KVARTO_WEB_FOLDER=\"${folder}\";KVARTO_CHART_JS=\"${KVARTO_CHART_JS}\""
    OBJECT_DEPENDS "${files};${KVARTO_CHART_JS}")
endfunction()
