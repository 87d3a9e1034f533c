// A whole node as a process of its own, to be stopped and killed: does what its parent asks over
// IPC, and tells it what its listener hears. argv: a WholeNodeOptions as JSON.

import { startWholeNode, type WholeNodeOptions } from "./whole-node.ts";

const node = await startWholeNode(JSON.parse(process.argv[2] ?? "{}") as WholeNodeOptions);
let sent = 0;

process.on("message", async (asked: { call: "login"; args: never[] }) => {
  if (asked.call === "login") for (const session of asked.args) await node.directory.login(session);
  process.send?.({ done: asked.call });
});
setInterval(() => {
  for (const event of node.events.slice(sent)) process.send?.({ event });
  sent = node.events.length;
}, 20);
process.on("disconnect", () => process.exit());
process.send?.({ done: "start" });
