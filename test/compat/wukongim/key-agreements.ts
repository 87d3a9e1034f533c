// Process of wkproto-keys.test.ts: agrees on as many keys as its argument says, then prints "done".

import { randomBytes } from "node:crypto";
import { agree } from "../../../src/compat/wukongim/wkproto/crypto.ts";

const clientKey = randomBytes(32).toString("base64");
for (let count = Number(process.argv[2]); count > 0; count -= 1) agree(clientKey);
process.stdout.write("done");
