// A node in its own process, which tests stop and kill. It runs the logins that its parent requests
// over IPC and reports the events it receives. Its argument is a WholeNodeOptions as JSON.

import { startWholeNode, type WholeNodeOptions } from "./whole-node.ts";

const node = await startWholeNode(JSON.parse(process.argv[2] ?? "{}") as WholeNodeOptions);
let sentCount = 0;

process.on("message", async (request: { call: "login"; args: never[] }) => {
  if (request.call === "login")
    for (const session of request.args) await node.directory.login(session);
  process.send?.({ done: request.call });
});
setInterval(() => {
  for (const event of node.events.slice(sentCount)) process.send?.({ event });
  sentCount = node.events.length;
}, 20);
process.on("disconnect", () => process.exit());
process.send?.({ done: "start" });
