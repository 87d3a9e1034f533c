// The attackers' process. On stdin, `start <number> <attack>` starts an attack and prints `<number>
// at work`. `stop <number>` ends it and prints `<number>` and its counts as JSON. The arguments are
// the API port and the client ports.

import { createInterface } from "node:readline";
import { Attackers } from "./attackers.ts";
import { ATTACKS } from "./attacks.ts";

const [apiPort, ...clientPorts] = process.argv.slice(2).map(Number);
let attackers: Attackers | undefined;

for await (const line of createInterface(process.stdin)) {
  const [verb, number, name = ""] = line.split(" ");
  if (verb === "start") {
    attackers = new Attackers({ apiPort: apiPort ?? 0, clientPorts });
    ATTACKS[name]?.start(attackers);
    process.stdout.write(`${number} at work\n`);
  } else {
    attackers?.stop();
    process.stdout.write(`${number} ${JSON.stringify(attackers?.counts)}\n`);
  }
}
process.exit();
