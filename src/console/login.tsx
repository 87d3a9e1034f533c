// The login form: for a manager's password or a pasted token.

import { useState } from "preact/hooks";
import { useApi } from "./hooks.ts";
import { ErrorNote, Field, textInput } from "./parts.tsx";

export function Login({ onDone }: { readonly onDone: () => void }) {
  const api = useApi();
  const [way, setWay] = useState<"password" | "token">("password");
  const [username, setUsername] = useState("admin");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState<Error>();
  const [isRunning, setRunning] = useState(false);
  const submit = async () => {
    setRunning(true);
    setError(undefined);
    try {
      await (way === "password" ? api.logIn(username, secret) : api.useToken(secret.trim()));
      onDone();
    } catch (failure) {
      setError(failure as Error);
      setRunning(false);
    }
  };
  return (
    <main class="login">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <h1 class="brand">Jindou console</h1>
        {way === "password" ? (
          <>
            <Field label="Username">
              <input required {...textInput(username, setUsername)} autocomplete="username" />
            </Field>
            <Field label="Password">
              <input
                type="password"
                required
                {...textInput(secret, setSecret)}
                autocomplete="current-password"
              />
            </Field>
          </>
        ) : (
          <Field label="Static API token, or access token">
            <input type="password" required {...textInput(secret, setSecret)} />
          </Field>
        )}
        <ErrorNote error={error} />
        <button type="submit" class="primary" disabled={isRunning}>
          Log in
        </button>
        <button
          type="button"
          class="link"
          onClick={() => {
            setSecret("");
            setWay(way === "password" ? "token" : "password");
          }}
        >
          {way === "password" ? "Use a token instead" : "Use a password instead"}
        </button>
        <p class="muted">
          The credential is kept in this tab until you log out or close the tab. It is never stored
          in a cookie.
        </p>
      </form>
    </main>
  );
}
