// Replies to the POST requests of an HTTP server that also serves Socket.IO sockets.

import type { IncomingMessage, Server } from "node:http";
import { text } from "node:stream/consumers";

/**
 * Calls `handle` with the path and the JSON body of each POST, and responds with `{}`. Socket.IO
 * handles all other requests.
 */
export function servePosts(http: Server, handle: (path: string, body: object) => void): void {
  const originalListeners = http.listeners("request");
  http.removeAllListeners("request");
  http.on("request", async (request: IncomingMessage, response) => {
    if (request.method !== "POST") {
      for (const listener of originalListeners) listener.call(http, request, response);
      return;
    }
    handle(request.url ?? "", JSON.parse(await text(request)));
    response.end("{}");
  });
}
