// Uses net/http to make the calls that a file lists, and prints the status of each reply.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	file, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(strings.TrimRight(string(file), "\n"), "\n") {
		call := strings.Split(line, "\t")
		request, err := http.NewRequest(call[0], os.Args[1]+call[1], strings.NewReader(call[2]))
		if err != nil {
			panic(err)
		}
		request.Header.Set("content-type", "application/json")
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
		fmt.Println(reply.StatusCode)
	}
}
