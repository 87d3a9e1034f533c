// Conversations on Redis agree with a simple model over random calls. Meanwhile time passes, users
// join and leave, and messages expire, pass retention, exceed the maximum of a channel, and are
// swept.

import t from "tap";
import { ConversationModel } from "../../contract/conversation-model.ts";
import { ConversationPair } from "../../contract/conversation-pair.ts";
import { Random } from "../../support/random.ts";
import { startRedis } from "../../support/redis.ts";
import { openConversations } from "./conversation-store.ts";

const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);
const ROUNDS = 4;
const STEPS = 120;
const RETENTION_S = 90;
const MAX_MESSAGES = 7;

t.test("conversations on Redis agree with a simple model over random calls", async (t) => {
  const { url } = await startRedis(t);
  for (let round = 0; round < ROUNDS; round++) {
    const seed = SEED + round;
    const retentionS = round % 2 === 0 ? 0 : RETENTION_S;
    const maxChannelMessages = round < ROUNDS / 2 ? 0 : MAX_MESSAGES;
    const limits = { retentionS, maxChannelMessages };
    t.test(
      `conversations agree with the model for SEED=${seed}, ${JSON.stringify(limits)}`,
      async (t) => {
        const random = new Random(seed);
        const model = new ConversationModel(limits);
        const clock = () => model.nowMs;
        const options = { clock, ...limits };
        const { store, sweep, problems } = await openConversations(t, url, options);
        const actors = { random, model, store: () => store, tickMs: 1 };
        const sweepBoth = async () => {
          await sweep.run();
          model.sweep();
        };
        await new ConversationPair(t, actors).run(STEPS, [[6, sweepBoth]]);
        t.same(problems, []);
      },
    );
  }
});
