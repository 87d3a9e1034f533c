# Uses net/http to make the calls that a file lists, and prints the status of each reply.

require "net/http"

address = URI(ARGV[0])
Net::HTTP.start(address.host, address.port) do |http|
  File.foreach(ARGV[1], chomp: true) do |line|
    method, path, body = line.split("\t")
    headers = { "content-type" => "application/json" }
    puts http.send_request(method, path, body, headers).code
  end
end
