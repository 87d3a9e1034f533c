// Process of wkproto-keys.test.ts: makes the number of key agreements that its argument names, then
// prints "done".

import { randomBytes } from "node:crypto";
import { agree } from "../../../src/compat/wukongim/wkproto/crypto.ts";

const clientKey = randomBytes(32).toString("base64");
for (let count = Number(process.argv[2]); count > 0; count -= 1) agree(clientKey);
process.stdout.write("done");
