// Sends invalid WebSocket frames to uWebSockets.js and prints how the connection ends.
// Run: node uwebsockets-websocket.mjs [name of the package]

import { connect } from "node:net";

const imported = await import(process.argv[2] ?? "uWebSockets.js");
const { App, us_listen_socket_close, us_socket_local_port } = imported.default ?? imported;

let listenSocket;
App()
  .ws("/*", { maxPayloadLength: 100 })
  .listen("127.0.0.1", 0, (socket) => {
    listenSocket = socket;
  });
const port = us_socket_local_port(listenSocket);

const frame = (first, payload) => {
  const length = payload.length < 126 ? [payload.length] : [126, 0, payload.length];
  const [size, ...more] = length;
  return Buffer.from([first, 0x80 | size, ...more, 0, 0, 0, 0, ...payload]);
};

const CASES = [
  ["a message over maxPayloadLength", "1009", frame(0x82, Buffer.alloc(101))],
  ["text that is not UTF-8", "1007", frame(0x81, [0xff])],
  ["a reserved bit", "1002", frame(0xc2, [1])],
  ["a reserved opcode", "1002", frame(0x83, [1])],
  ["a ping of 126 bytes", "1002", frame(0x89, Buffer.alloc(126))],
  ["a continuation without a start", "1002", frame(0x80, [1])],
];

for (const [name, expected, bytes] of CASES) {
  let answer = Buffer.alloc(0);
  const socket = connect(port, "127.0.0.1");
  const closed = new Promise((resolve) => socket.on("close", resolve));
  const opened = new Promise((resolve) => {
    socket.on("data", (data) => {
      answer = Buffer.concat([answer, data]);
      resolve();
    });
  });
  socket.on("error", () => {});
  socket.write(
    "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
  );
  await opened;
  answer = Buffer.alloc(0);
  socket.write(bytes);
  await closed;
  const code = answer[0] === 0x88 && answer.length >= 4 ? answer.readUInt16BE(2) : "none";
  process.stdout.write(`${name}: close code ${code}, RFC 6455 has ${expected}\n`);
}
us_listen_socket_close(listenSocket);
