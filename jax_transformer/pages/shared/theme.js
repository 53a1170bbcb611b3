// Light and dark: follows the system until the reader presses the button.

function storedTheme() {
  try { return localStorage.getItem('theme'); } catch { return null; } // a page from a file may have no storage
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

const systemIsDark = matchMedia('(prefers-color-scheme: dark)');

function themeButton() {
  const name = () => (document.documentElement.dataset.theme === 'dark' ? 'Light' : 'Dark');
  const label = element('span', {}, name());
  const button = element('button', { type: 'button', class: 'small', id: 'theme', click: () => {
    const theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    applyTheme(theme);
    label.textContent = name();
    try { localStorage.setItem('theme', theme); } catch { /* the choice isn't kept */ }
  } }, label, element('span', { class: 'unseen' }, ' colours'));
  systemIsDark.addEventListener('change', () => {
    if (!storedTheme()) applyTheme(systemIsDark.matches ? 'dark' : 'light');
    label.textContent = name();
  });
  return button;
}

applyTheme(storedTheme() || (systemIsDark.matches ? 'dark' : 'light'));
