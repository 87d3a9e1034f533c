// Sends requests to uWebSockets.js and prints what it answers.
// Run: node uwebsockets-http.mjs [name of the package]

import { connect } from "node:net";

const imported = await import(process.argv[2] ?? "uWebSockets.js");
const { App, us_listen_socket_close, us_socket_local_port } = imported.default ?? imported;

const calls = [];
let listenSocket;
App()
  .get("/", (res, req) => {
    calls.push(`GET ${JSON.stringify(req.getHeader("x-name"))}`);
    res.end("got");
  })
  .get("/refused", (res) => res.writeStatus("400 Bad Request").end("", true))
  .post("/", (res) => {
    let body = "";
    res.onAborted(() => calls.push("aborted"));
    res.onData((chunk, isLast) => {
      body += Buffer.from(chunk).toString();
      if (!isLast) return;
      calls.push(`POST ${JSON.stringify(body)}`);
      res.end("posted");
    });
  })
  .listen("127.0.0.1", 0, (socket) => {
    listenSocket = socket;
  });
const port = us_socket_local_port(listenSocket);

const HOST = "host: x\r\n";
const CHUNKED = `POST / HTTP/1.1\r\n${HOST}transfer-encoding: chunked\r\n\r\n`;
const GET = `GET / HTTP/1.1\r\n${HOST}\r\n`;

/** Each entry of a list is sent in a packet of its own. */
const CASES = [
  ["1. a request line in two packets", ["GET ", `/ HTTP/1.1\r\n${HOST}\r\n`]],
  ["2. HTTP/1.0", ["GET / HTTP/1.0\r\n\r\n"]],
  ["3. no Host", ["GET / HTTP/1.1\r\n\r\n"]],
  [
    "4. Expect: 100-Continue",
    [`POST / HTTP/1.1\r\n${HOST}expect: 100-Continue\r\ncontent-length: 2\r\n\r\n`],
  ],
  ["5. a trailer", [`${CHUNKED}2\r\nab\r\n0\r\na: b\r\n\r\n`]],
  ["6. a chunk extension", [`${CHUNKED}2;a=b\r\nab\r\n0\r\n\r\n`]],
  ["7. two other bytes after the last chunk", [`${CHUNKED}2\r\nab\r\n0\r\nXX${GET}`]],
  ["8. an absolute target", [`GET http://x/ HTTP/1.1\r\n${HOST}\r\n`]],
  ["9. an empty line first", [`\r\n${GET}`]],
  ["10. letters beyond ASCII", [`GET / HTTP/1.1\r\n${HOST}x-name: josé\r\n\r\n`]],
  ["11. a refused request and another one", [`GET /refused HTTP/1.1\r\n${HOST}\r\n${GET}`]],
];

for (const [name, packets] of CASES) {
  calls.length = 0;
  let answer = "";
  let end = "stays open";
  const socket = connect(port, "127.0.0.1");
  socket.on("data", (data) => {
    answer += data;
  });
  socket.on("error", () => {});
  socket.on("close", () => {
    end = "closed";
  });
  for (const packet of packets) {
    socket.write(packet);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await new Promise((resolve) => setTimeout(resolve, 300));
  const statuses = [...answer.matchAll(/^HTTP\/1\.1 (.*)\r$/gm)].map(([, status]) => status);
  process.stdout.write(`${name}: handlers [${calls}], answers [${statuses}], ${end}\n`);
  socket.destroy();
}
us_listen_socket_close(listenSocket);
