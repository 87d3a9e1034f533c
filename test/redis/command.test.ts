// Commands are encoded as bytes: a server decodes them to the same arguments, and its replies are
// returned as bytes.

import t from "tap";
import { EncodedCommand, encodeCommand } from "../../src/redis/client.ts";
import { startRedis } from "../support/redis.ts";

t.test("the lengths of arguments are counted in bytes for text, buffers and numbers", (t) => {
  const bytes = encodeCommand("set", ["ключ", Buffer.from([0, 13, 10, 255]), 7]);
  const head = Buffer.from("*4\r\n$3\r\nset\r\n$8\r\nключ\r\n$4\r\n");
  const tail = Buffer.from("\r\n$1\r\n7\r\n");
  const binary = Buffer.from([0, 13, 10, 255]);
  t.strictSame(bytes, Buffer.concat([head, binary, tail]));
  t.equal(encodeCommand("ping", []).toString(), "*1\r\n$4\r\nping\r\n");
  const empty = encodeCommand("echo", [Buffer.alloc(0)]);
  t.equal(empty.toString(), "*2\r\n$4\r\necho\r\n$0\r\n\r\n");
  t.end();
});

t.test(
  "replies to encoded commands are returned as bytes if they are text, and as numbers if they are integers",
  async (t) => {
    const client = (await startRedis(t)).client();
    const send = (name: string, ...args: (string | number | Buffer)[]) => {
      const command = new EncodedCommand(name, args);
      client.sendCommand(command);
      return command.promise;
    };
    const value = Buffer.from([1, 128, 10, 13]);
    t.strictSame(await send("set", "a\nkey", value), Buffer.from("OK"));
    t.strictSame(await send("get", "a\nkey"), value);
    t.strictSame(await send("incrby", "n", 2 ** 52), 2 ** 52);
    t.strictSame(await send("mget", "a\nkey", "none"), [value, null]);
    await t.rejects(send("get"), { name: "ReplyError" });
  },
);
