// The root of the operator's console: shows the login, the navigation and the chosen page.

import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Api } from "./api.ts";
import { Calls } from "./calls.tsx";
import { Channel } from "./channel.tsx";
import { ApiProvider, linkTo, useRoute } from "./hooks.ts";
import { Login } from "./login.tsx";
import { MessageSearch } from "./message.tsx";
import { Overview, useMetrics } from "./overview.tsx";
import { Sessions } from "./sessions.tsx";
import { Settings } from "./settings.tsx";
import { User } from "./user.tsx";

const PAGES = [
  ["overview", "Overview"],
  ["sessions", "Sessions"],
  ["user", "User"],
  ["channel", "Channel"],
  ["message", "Message"],
  ["api", "API"],
  ["settings", "Settings"],
] as const;

type Admission = "unknown" | "admitted" | "refused" | "unreachable";

function Console() {
  const [admission, setAdmission] = useState<Admission>("unknown");
  const api = useMemo(() => new Api(() => setAdmission("refused")), []);
  useEffect(() => {
    api.isAdmitted().then(
      (isAdmitted) => setAdmission(isAdmitted ? "admitted" : "refused"),
      () => setAdmission("unreachable"),
    );
  }, [api]);
  return (
    <ApiProvider value={api}>
      {admission === "admitted" && <Shell api={api} />}
      {admission === "refused" && <Login onDone={() => setAdmission("admitted")} />}
      {admission === "unreachable" && (
        <main class="login">
          <p class="card">The node does not respond. Reload this page.</p>
        </main>
      )}
    </ApiProvider>
  );
}

function Shell({ api }: { readonly api: Api }) {
  const route = useRoute();
  const metrics = useMetrics();
  const { account } = api;
  const title = PAGES.find(([page]) => page === route.page)?.[1] ?? "Overview";
  useEffect(() => {
    document.title = `${title} · Jindou console`;
  }, [title]);
  return (
    <div class="shell">
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to the page
      </button>
      <nav aria-label="Pages">
        <a class="brand" href={linkTo("overview")}>
          Jindou
        </a>
        <ul>
          {PAGES.map(([page, label]) => (
            <li key={page}>
              <a href={linkTo(page)} aria-current={label === title ? "page" : undefined}>
                {label}
              </a>
            </li>
          ))}
        </ul>
        <div class="account">
          {api.hasCredential ? (
            <>
              <span>
                {account?.username ?? "API token"} <span class="muted">{account?.role}</span>
              </span>
              <button type="button" class="small" onClick={() => void api.logOut()}>
                Log out
              </button>
            </>
          ) : (
            <span class="muted">Protected mode: this machine only, no login</span>
          )}
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        {title === "Overview" && <Overview metrics={metrics} />}
        {title === "Sessions" && <Sessions route={route} />}
        {title === "User" && <User route={route} />}
        {title === "Channel" && <Channel route={route} />}
        {title === "Message" && <MessageSearch />}
        {title === "API" && <Calls />}
        {title === "Settings" && <Settings />}
      </main>
    </div>
  );
}

render(<Console />, document.body);
