// Uses Java's HttpClient to make the calls that a file lists, and prints the status of each reply.
// The third argument is `HTTP_1_1` or `HTTP_2`. If the fourth is `true`, calls with a body send
// `Expect: 100-Continue`.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;

public class Calls {
  public static void main(String[] args) throws Exception {
    var client = HttpClient.newBuilder().version(HttpClient.Version.valueOf(args[2])).build();
    for (var line : Files.readAllLines(Path.of(args[1]))) {
      var call = line.split("\t", -1);
      var body =
          call[2].isEmpty()
              ? HttpRequest.BodyPublishers.noBody()
              : HttpRequest.BodyPublishers.ofString(call[2]);
      var request =
          HttpRequest.newBuilder(URI.create(args[0] + call[1]))
              .header("content-type", "application/json")
              .expectContinue(!call[2].isEmpty() && Boolean.parseBoolean(args[3]))
              .method(call[0], body)
              .build();
      System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
  }
}
