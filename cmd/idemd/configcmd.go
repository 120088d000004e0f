package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

func (w *world) configCommand() *cobra.Command {
	return group("config", "Check and show the daemon's settings",
		"The order is: flag, IDEMD_ variable, file (--config), default. What is not known is refused, in the file and in the environment.", groupDaemon,
		w.configCheckCommand(), w.configPrintCommand())
}

// shownSetting is a setting as it is shown: without what is secret in it.
type shownSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// shownSettings are all settings of the daemon as they are in force, and where each came from.
func (w *world) shownSettings(fs *pflag.FlagSet) []shownSetting {
	var out []shownSetting
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[fileAnnotation] == nil {
			return
		}
		value := f.Value.String()
		if f.Name == "store" {
			value = redactURL(value)
		}
		from := w.origins[f.Name]
		if from == "" {
			from = "default"
		}
		out = append(out, shownSetting{f.Name, value, from})
	})
	return out
}

// settingsCommand makes a command that takes the daemon's settings and starts none.
func (w *world) settingsCommand(use, short, long string) (*cobra.Command, *settings) {
	s := &settings{env: w.getenv, uid: w.uid}
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: exactArgs(), Annotations: map[string]string{strictEnvironment: "yes"}}
	s.register(cmd.Flags())
	return cmd, s
}

func (w *world) configCheckCommand() *cobra.Command {
	cmd, s := w.settingsCommand("check", "Say whether a daemon would start with these settings, and show them",
		"Check flags, environment and file as idemd serve would, with the files that they name, and show what is in force. Nothing is opened or written. "+
			"Exit codes: 0 they are right; 2 they are not.")
	out := addOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.validate(); err != nil {
			return asUsage(err)
		}
		choice, err := s.chooseStore()
		if err != nil {
			return asUsage(err)
		}
		shown := w.shownSettings(cmd.Flags())
		if out.value == formJSON {
			return printJSON(w.stdout, struct {
				Store    string         `json:"store"`
				Settings []shownSetting `json:"settings"`
			}{choice.String(), shown})
		}
		var rows [][]string
		for _, setting := range shown {
			rows = append(rows, []string{setting.Name, oneLine(setting.Value), oneLine(setting.From)})
		}
		table(w.stdout, []string{"SETTING", "VALUE", "FROM"}, rows)
		w.stdout.printf("\nThe settings are right. The ledger is kept in %s.\n", choice)
		return nil
	}
	return cmd
}

func (w *world) configPrintCommand() *cobra.Command {
	cmd, s := w.settingsCommand("print", "Show the settings in the form of a file for --config",
		"Show the settings that are in force in the form of a file for --config, each with where it came from. Passwords are hidden: put them into a file of "+
			"their own, see --store-password-file.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.validate(); err != nil {
			return asUsage(err)
		}
		document := &yaml.Node{Kind: yaml.MappingNode}
		for _, setting := range w.shownSettings(cmd.Flags()) {
			key := &yaml.Node{Kind: yaml.ScalarNode, Value: setting.Name}
			value := &yaml.Node{Kind: yaml.ScalarNode, Value: setting.Value, LineComment: setting.From}
			if setting.Value == "" {
				value.Tag, value.Style = "!!str", yaml.DoubleQuotedStyle
			}
			document.Content = append(document.Content, key, value)
		}
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = w.stdout.Write(text)
		return err
	}
	return cmd
}
