from fedbiad.cli import main

main()
