// The demo: two users side by side, each with their own clients. When the page is closed, it
// removes its tokens and its group if the browser still sends the calls. Messages expire later.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { cleanUp, setUp } from "./backend.ts";
import { Pane } from "./pane.tsx";
import { createWorld } from "./world.ts";

const { clientUrl = "", consolePath = "" } = document.body.dataset;
const world = createWorld();
addEventListener("pagehide", () => void cleanUp(world));
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) location.reload(); // the tokens and the group were removed when the page was hidden
});

function Demo() {
  const [state, setState] = useState<"starting" | "ready" | Error>("starting");
  useEffect(() => void setUp(world).then(() => setState("ready"), setState), []);
  const [ann, ben] = world.users;
  return (
    <>
      <header class="page">
        <h1 class="brand">Jindou</h1>
        <ol>
          <li>Write as Ann and as Ben, in the group or to each other.</li>
          <li>Ask the AI, and stop it while it writes.</li>
          <li>Cut Ben’s network, write to him, and restore it.</li>
          <li>Sign Ann in on a second device, which signs out the first.</li>
        </ol>
        {consolePath !== "" && <a href={consolePath}>Console</a>}
      </header>
      <main>
        {state instanceof Error && <p role="alert">The demo cannot start. {state.message}</p>}
        {state === "ready" && (
          <>
            <Pane clientUrl={clientUrl} world={world} user={ann} peer={ben} />
            <Pane clientUrl={clientUrl} world={world} user={ben} peer={ann} />
          </>
        )}
      </main>
      <footer>
        Clients connect to <code>{clientUrl}</code>. All ids begin with <code>{world.prefix}</code>,
        and what the users write is removed after an hour.
      </footer>
    </>
  );
}

render(<Demo />, document.body);
